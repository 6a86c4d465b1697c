#include "cli/console/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace pipeloom::cli {
namespace {

absl::Status SystemError(absl::string_view doing, absl::string_view path,
                         int error) {
  const std::string message =
      absl::StrCat(doing, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnknownError(message);
  }
}

class OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  ~OpenFile() { Close(); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return descriptor_; }
  // Closes the file; returns 0 or the error.
  int Close() {
    if (descriptor_ < 0) return 0;
    return close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
  }

 private:
  int descriptor_;
};

// A temporary file, which is removed unless it is kept.
class ScratchFile {
 public:
  explicit ScratchFile(std::string path) : path_(std::move(path)) {}
  ~ScratchFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

// Writes all of `contents`; returns 0 or the error.
int WriteAll(int descriptor, absl::string_view contents) {
  while (!contents.empty()) {
    const ssize_t count = write(descriptor, contents.data(), contents.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    contents.remove_prefix(static_cast<size_t>(count));
  }
  return 0;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

mode_t DefaultMode() {
  const mode_t mask = umask(0);
  umask(mask);
  return 0666 & ~mask;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes) {
  const OpenFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return SystemError("cannot open", path, errno);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) {
    return SystemError("cannot read", path, errno);
  }
  if (S_ISDIR(info.st_mode)) return SystemError("cannot read", path, EISDIR);
  std::string contents;
  if (S_ISREG(info.st_mode) && info.st_size <= max_bytes) {
    contents.reserve(static_cast<size_t>(info.st_size));
  }
  std::vector<char> buffer(1 << 16);
  while (true) {
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return SystemError("cannot read", path, errno);
    }
    if (count == 0) return contents;
    contents.append(buffer.data(), static_cast<size_t>(count));
    if (static_cast<int64_t>(contents.size()) > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is larger than the limit of ", max_bytes, " bytes"));
    }
  }
}

bool FileExists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents) {
  if (path == "-") {
    const int error = WriteAll(STDOUT_FILENO, contents);
    if (error == 0) return absl::OkStatus();
    return SystemError("cannot write", "the standard output", error);
  }
  std::string target = path;
  mode_t mode = DefaultMode();
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return SystemError("cannot write", path, EISDIR);
    if (!S_ISREG(info.st_mode)) {
      OpenFile file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
      if (file.get() < 0) return SystemError("cannot open", path, errno);
      int error = WriteAll(file.get(), contents);
      if (error == 0) error = file.Close();
      if (error != 0) return SystemError("cannot write", path, error);
      return absl::OkStatus();
    }
    mode = info.st_mode & 07777;
    // Replaces the file that a symbolic link leads to, not the link.
    char resolved[PATH_MAX];
    if (realpath(path.c_str(), resolved) != nullptr) target = resolved;
  }
  const std::string folder = FolderOf(target);
  std::string scratch = absl::StrCat(folder, "/.pipeloom-XXXXXX");
  OpenFile file(mkostemp(scratch.data(), O_CLOEXEC));
  if (file.get() < 0) return SystemError("cannot write", path, errno);
  ScratchFile remover(scratch);
  int error = WriteAll(file.get(), contents);
  if (error == 0 && fchmod(file.get(), mode) != 0) error = errno;
  if (error == 0 && fsync(file.get()) != 0) error = errno;
  if (error == 0) error = file.Close();
  if (error == 0 && rename(scratch.c_str(), target.c_str()) != 0) error = errno;
  if (error != 0) return SystemError("cannot write", path, error);
  remover.Keep();
  // Flushes the folder, so that the new name survives a power cut, as far as
  // the file system supports that.
  const OpenFile parent(open(folder.c_str(), O_RDONLY | O_CLOEXEC));
  if (parent.get() >= 0) fsync(parent.get());
  return absl::OkStatus();
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
  const int error = errno;
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::OkStatus();
  }
  return SystemError("cannot create", path, error);
}

absl::StatusOr<std::string> FindDataDir(const std::string& flag) {
  const auto is_data_dir = [](const std::string& folder) {
    return FileExists(folder + "/jobs") && FileExists(folder + "/models");
  };
  if (!flag.empty()) {
    if (is_data_dir(flag)) return flag;
    return absl::NotFoundError(absl::StrCat(
        "--data-dir ", flag, ": it has no folders \"jobs\" and \"models\""));
  }
  if (const char* variable = std::getenv("PIPELOOM_DATA_DIR");
      variable != nullptr && variable[0] != '\0') {
    if (is_data_dir(variable)) return std::string(variable);
    return absl::NotFoundError(
        absl::StrCat("PIPELOOM_DATA_DIR=", variable,
                     ": it has no folders \"jobs\" and \"models\""));
  }
  std::vector<std::string> places;
  char binary[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", binary, sizeof(binary) - 1);
  if (length > 0) {
    const std::string path(binary, static_cast<size_t>(length));
    places.push_back(FolderOf(FolderOf(path)) + "/share/pipeloom");
  }
#ifdef PIPELOOM_SOURCE_DATA_DIR
  places.push_back(PIPELOOM_SOURCE_DATA_DIR);
#endif
  for (const std::string& place : places) {
    if (is_data_dir(place)) return place;
  }
  return absl::NotFoundError(absl::StrCat(
      "the shipped data are in none of ", absl::StrJoin(places, ", "),
      "; give --data-dir or set PIPELOOM_DATA_DIR"));
}

}  // namespace pipeloom::cli
