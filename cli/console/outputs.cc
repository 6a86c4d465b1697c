#include "cli/console/outputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pipeloom::cli {
namespace {

namespace fs = std::filesystem;

absl::Status Refused(const Flag& flag, const std::string& path,
                     absl::string_view why) {
  return UsageError(absl::StrCat("--", flag.name, " ", path, ": ", why));
}

// Checks that files can be created in `folder`.
absl::Status CheckFolder(const Flag& flag, const std::string& path,
                         const fs::path& folder) {
  const std::string name = folder.empty() ? "." : folder.string();
  struct stat info {};
  if (stat(name.c_str(), &info) != 0) {
    return Refused(flag, path,
                   absl::StrCat("the folder ", name,
                                " cannot be used: ", std::strerror(errno),
                                "; create it or name another"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return Refused(
        flag, path,
        absl::StrCat(name, " is no folder; name a file in a folder"));
  }
  std::string probe = absl::StrCat(name, "/.pipeloom-XXXXXX");
  const int descriptor = mkostemp(probe.data(), O_CLOEXEC);
  if (descriptor < 0) {
    return Refused(flag, path,
                   absl::StrCat("the folder ", name,
                                " cannot be written: ", std::strerror(errno),
                                "; name a file in another folder"));
  }
  close(descriptor);
  unlink(probe.c_str());
  return absl::OkStatus();
}

absl::Status CheckFile(const Flag& flag, const std::string& path) {
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if ((exists && S_ISDIR(info.st_mode)) || path.back() == '/') {
    return Refused(flag, path, "it is a folder; name a file");
  }
  if (exists && !S_ISREG(info.st_mode)) {
    // A device or a pipe, which is opened only to be written: opening a pipe
    // waits for its reader.
    if (access(path.c_str(), W_OK) == 0) return absl::OkStatus();
    return Refused(flag, path,
                   absl::StrCat("it cannot be written: ", std::strerror(errno),
                                "; name another file"));
  }
  std::error_code error;
  const fs::path target = exists ? fs::canonical(path, error) : fs::path(path);
  return CheckFolder(flag, path,
                     (error ? fs::path(path) : target).parent_path());
}

absl::Status CheckOutputFolder(const Flag& flag, const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) return CheckFolder(flag, path, path);
  fs::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();  // "name/"
  return CheckFolder(flag, path, folder.parent_path());
}

// Returns whether this is a rank of an MPI run other than the first.
bool IsFurtherRank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* const rank = std::getenv(name);
    if (rank != nullptr && rank[0] != '\0') return std::strcmp(rank, "0") != 0;
  }
  return false;
}

}  // namespace

absl::Status CheckOutputs(absl::Span<const Flag> flags) {
  if (IsFurtherRank()) return absl::OkStatus();
  std::map<std::string, std::string> names;  // Options, indexed by file.
  for (const Flag& flag : flags) {
    std::string* const* const value = std::get_if<std::string*>(&flag.target);
    if (flag.output == Output::kNone || value == nullptr || (*value)->empty()) {
      continue;
    }
    const std::string& path = **value;
    if (flag.output == Output::kFolder) {
      PIPELOOM_RETURN_IF_ERROR(CheckOutputFolder(flag, path));
      continue;
    }
    PIPELOOM_RETURN_IF_ERROR(CheckFile(flag, path));
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    if (error || (fs::exists(whole, error) && !fs::is_regular_file(whole))) {
      continue;
    }
    const auto [place, is_new] = names.emplace(whole.string(), flag.name);
    if (!is_new) {
      return Refused(flag, path,
                     absl::StrCat("--", place->second,
                                  " writes the same file; name another"));
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::cli
