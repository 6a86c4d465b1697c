#include "cli/console/outputs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

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

// Returns the files that a command reads and how it is told of them, indexed by
// file: arguments and values of options that are existing files.
std::map<std::string, std::string> FilesRead(
    absl::Span<const Flag> flags, absl::Span<const std::string> args) {
  std::map<std::string, std::string> read;
  const auto add = [&](const std::string& path, absl::string_view how) {
    std::error_code error;
    if (path.empty() || !fs::is_regular_file(path, error)) return;
    read.emplace(fs::weakly_canonical(path, error).string(), how);
  };
  for (const std::string& arg : args) add(arg, "the command's argument");
  for (const Flag& flag : flags) {
    if (flag.output != Output::kNone) continue;
    const std::string how = absl::StrCat("the value of --", flag.name);
    if (std::string* const* const value =
            std::get_if<std::string*>(&flag.target)) {
      add(**value, how);
    }
    if (std::vector<std::string>* const* const values =
            std::get_if<std::vector<std::string>*>(&flag.target)) {
      for (const std::string& value : **values) add(value, how);
    }
    if (std::optional<std::string>* const* const value =
            std::get_if<std::optional<std::string>*>(&flag.target)) {
      if (value != nullptr && (*value)->has_value()) add(***value, how);
    }
  }
  return read;
}

}  // namespace

bool WritesToStdout(absl::Span<const Flag> flags) {
  return std::any_of(flags.begin(), flags.end(), [](const Flag& flag) {
    std::string* const* const value = std::get_if<std::string*>(&flag.target);
    return flag.output != Output::kNone && value != nullptr && **value == "-";
  });
}

absl::Status CheckOutputs(absl::Span<const Flag> flags,
                          absl::Span<const std::string> args) {
  if (IsFurtherRank()) return absl::OkStatus();
  const std::map<std::string, std::string> read = FilesRead(flags, args);
  std::map<std::string, std::string> names;  // Options, indexed by file.
  for (const Flag& flag : flags) {
    std::string* const* const value = std::get_if<std::string*>(&flag.target);
    if (flag.output == Output::kNone || value == nullptr || (*value)->empty()) {
      continue;
    }
    const std::string& path = **value;
    if (path == "-") {
      if (flag.output != Output::kFile) {
        return Refused(flag, path,
                       "it cannot be the standard output; name a file, such "
                       "as ./-");
      }
      const auto [place, is_new] = names.emplace(path, flag.name);
      if (is_new) continue;
      return Refused(flag, path,
                     absl::StrCat("--", place->second,
                                  " writes there too; name a file for one"));
    }
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
    if (const auto input = read.find(whole.string()); input != read.end()) {
      return Refused(flag, path,
                     absl::StrCat("it is ", input->second,
                                  ", which would be lost; name another file"));
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
