#include "cli/console/build_id.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pipeloom::cli {
namespace {

constexpr absl::string_view kMark = "pipeloom build: ";
constexpr size_t kMax = 80;  // Most characters of a name.

// Returns the name at the beginning of `text`; empty if there is none, as after
// the mark's own string in a program.
absl::string_view NameAt(absl::string_view text) {
  const size_t end = text.substr(0, kMax).find('\n');
  if (end == absl::string_view::npos) return "";
  const absl::string_view name = text.substr(0, end);
  for (const char c : name) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                      c == '.' || c == '-';
    if (!fits) return "";
  }
  return name;
}

}  // namespace

std::string OwnBuild() {
  return std::string(
      NameAt(absl::string_view(kBuildLine).substr(kMark.size())));
}

std::string BuildOf(const std::string& program) {
  const int fd = open(program.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  struct stat info {};
  void* bytes = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size > 0) {
    bytes = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ,
                 MAP_PRIVATE, fd, 0);
  }
  close(fd);
  if (bytes == MAP_FAILED) return "";
  const absl::string_view file(static_cast<const char*>(bytes),
                               static_cast<size_t>(info.st_size));
  std::string name;
  for (size_t at = 0; name.empty() && at < file.size(); at += kMark.size()) {
    const void* mark =
        memmem(file.data() + at, file.size() - at, kMark.data(), kMark.size());
    if (mark == nullptr) break;
    at = static_cast<size_t>(static_cast<const char*>(mark) - file.data());
    name = std::string(NameAt(file.substr(at + kMark.size())));
  }
  munmap(bytes, file.size());
  return name;
}

absl::Status CheckSameBuild(const std::string& program) {
  if (access(program.c_str(), R_OK) != 0) return absl::OkStatus();
  const std::string theirs = BuildOf(program);
  const std::string own = OwnBuild();
  if (theirs == own) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      program, " is build ", theirs.empty() ? "unknown (it says none)" : theirs,
      ", but pipeloom is build ", own,
      "; they must be of one build: build or install both again"));
}

}  // namespace pipeloom::cli
