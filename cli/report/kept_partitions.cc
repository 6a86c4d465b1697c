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
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/report/partition_file.h"
#include "formats/job/partition_reader.h"
#include "partition/placement/recipe.h"
#include "pipeloom/v1/carried_step.pb.h"
#include "proto/convert/carried_step_proto.h"

namespace pipeloom::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 256;
constexpr char kLessons[] = ".lessons";

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
  PIPELOOM_RETURN_IF_ERROR(MakeFolder());
  const absl::Status written = WriteFileAtomically(
      PathOf(key),
      PartitionJson(job, partition, comment, /*with_layout=*/false));
  if (written.ok()) DropOldest();
  return written;
}

std::string KeptPartitions::LessonsPathOf(const Fingerprint& key) const {
  return absl::StrFormat("%s/%016x%016x%s", folder_, key.high, key.low,
                         kLessons);
}

std::optional<std::vector<std::shared_ptr<const CarriedStep>>>
KeptPartitions::FindLessons(const Fingerprint& key,
                            const Partition& partition) const {
  if (folder_.empty()) return std::nullopt;
  const absl::StatusOr<std::string> bytes = ReadFile(LessonsPathOf(key));
  v1::CarriedSteps proto;
  if (!bytes.ok() || !proto.ParseFromString(*bytes)) return std::nullopt;
  const Fingerprint of{proto.partition_high(), proto.partition_low()};
  if (of != FingerprintOf(partition)) return std::nullopt;
  auto lessons = convert::FromProto(proto);
  if (!lessons.ok()) return std::nullopt;
  return *std::move(lessons);
}

absl::Status KeptPartitions::KeepLessons(
    const Fingerprint& key, const Partition& partition,
    const std::vector<std::shared_ptr<const CarriedStep>>& lessons) const {
  if (folder_.empty()) return absl::OkStatus();
  PIPELOOM_RETURN_IF_ERROR(MakeFolder());
  v1::CarriedSteps proto = convert::ToProto(lessons);
  const Fingerprint of = FingerprintOf(partition);
  proto.set_partition_high(of.high);
  proto.set_partition_low(of.low);
  return WriteFileAtomically(LessonsPathOf(key), proto.SerializeAsString());
}

absl::Status KeptPartitions::MakeFolder() const {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(folder_, ": ", error.message()));
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
    fs::remove(files[i].second.replace_extension(kLessons), error);
  }
}

}  // namespace pipeloom::cli
