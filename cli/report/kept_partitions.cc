#include "cli/report/kept_partitions.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/console/files.h"
#include "cli/report/partition_file.h"
#include "formats/job/partition_reader.h"
#include "partition/placement/recipe.h"

namespace pipeloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 256;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

KeptPartitions KeptPartitions::OfUser() {
  std::string root = Variable("PIPELOOM_CACHE_DIR");
  if (root.empty()) {
    std::string cache = Variable("XDG_CACHE_HOME");
    const std::string home = Variable("HOME");
    if (cache.empty() && !home.empty()) cache = absl::StrCat(home, "/.cache");
    if (!cache.empty()) root = absl::StrCat(cache, "/pipeloom");
  }
  return KeptPartitions(root.empty() ? "" : absl::StrCat(root, "/partitions"));
}

std::string KeptPartitions::PathOf(const Fingerprint& key) const {
  if (folder_.empty()) return "";
  return absl::StrFormat("%s/%016x%016x.json", folder_, key.high, key.low);
}

std::optional<Partition> KeptPartitions::Find(const Fingerprint& key,
                                              const JobSpec& job) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = PathOf(key);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  absl::StatusOr<Partition> partition =
      formats::ParsePartition(*text, path, job);
  if (!partition.ok() ||
      !partition::CheckPartitionRules(job, *partition).ok()) {
    return std::nullopt;
  }
  return *std::move(partition);
}

absl::Status KeptPartitions::Keep(const Fingerprint& key, const JobSpec& job,
                                  const Partition& partition,
                                  const std::string& comment) const {
  if (folder_.empty()) return absl::OkStatus();
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(folder_, ": ", error.message()));
  }
  const absl::Status written = WriteFileAtomically(
      PathOf(key),
      PartitionJson(job, partition, comment, /*with_layout=*/false));
  if (written.ok()) DropOldest();
  return written;
}

void KeptPartitions::DropOldest() const {
  std::error_code error;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder_, error)) {
    if (entry.path().extension() != ".json") continue;
    const fs::file_time_type time = entry.last_write_time(error);
    if (!error) files.emplace_back(time, entry.path());
  }
  if (files.size() <= kMostFiles) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i + kMostFiles < files.size(); ++i) {
    fs::remove(files[i].second, error);
  }
}

}  // namespace pipeloom::cli
