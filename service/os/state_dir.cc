#include "service/os/state_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/fingerprint.h"
#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'p', 'l', 's', 't', 'a', 't', 'e', '1'};
constexpr char kTemporary[] = ".tmp-";
constexpr char kDamaged[] = "damaged";
constexpr size_t kHeadBytes = sizeof(kMagic) + 16;

std::string TemporaryName() {
  static std::atomic<uint64_t> serial{0};
  return absl::StrCat(kTemporary, serial++);
}

std::string HeadOf(absl::string_view content) {
  const Fingerprint print = FingerprintBuilder().Add(content).Build();
  std::string head(kMagic, sizeof(kMagic));
  for (const uint64_t half : {print.high, print.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) {
      head += static_cast<char>((half >> shift) & 0xff);
    }
  }
  return head;
}

absl::Status DiskError(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat(what, " ", path, ": ", strerror(errno)));
}

absl::Status WriteAll(int fd, absl::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return DiskError("cannot write", path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Flushes a folder. A rename or a new folder is on disk only when the enclosing
// folder has been flushed.
void SyncFolder(const fs::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

absl::Status MakeFolders(const fs::path& folder) {
  // Without exceptions: the path may not be readable, or a file in its way.
  std::error_code error;
  if (fs::is_directory(folder, error)) return absl::OkStatus();
  if (folder.has_parent_path()) {
    PIPELOOM_RETURN_IF_ERROR(MakeFolders(folder.parent_path()));
  }
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) {
    return DiskError("cannot create folder", folder.string());
  }
  if (!fs::is_directory(folder, error)) {
    errno = ENOTDIR;
    return DiskError("cannot create folder", folder.string());
  }
  SyncFolder(folder.parent_path());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDir>> StateDir::Open(
    const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::absolute(path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot find the folder of ",
                                               path, ": ", error.message()));
  }
  PIPELOOM_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string lock_path = (folder / "lock").string();
  const int lock = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return DiskError("cannot open", lock_path);
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    close(lock);
    return absl::FailedPreconditionError(absl::StrCat(
        "the state folder ", path, " is in use by another process"));
  }
  return std::unique_ptr<StateDir>(new StateDir(folder.string(), lock));
}

StateDir::~StateDir() { close(lock_); }

absl::Status StateDir::Write(const std::string& name,
                             absl::string_view content) const {
  const fs::path path = fs::path(path_) / name;
  PIPELOOM_RETURN_IF_ERROR(MakeFolders(path.parent_path()));
  const std::string temporary = (path.parent_path() / TemporaryName()).string();
  const int fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return DiskError("cannot create", temporary);
  absl::Status status = WriteAll(fd, HeadOf(content), temporary);
  if (status.ok()) status = WriteAll(fd, content, temporary);
  if (status.ok() && fsync(fd) != 0) {
    status = DiskError("cannot flush", temporary);
  }
  if (close(fd) != 0 && status.ok()) {
    status = DiskError("cannot close", temporary);
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = DiskError("cannot rename to", path.string());
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  SyncFolder(path.parent_path());
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateDir::Read(const std::string& name) const {
  const std::string path = (fs::path(path_) / name).string();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    // A link whose target is gone is there, and cannot be read.
    const int reason = errno;
    struct stat info {};
    if (reason == ENOENT && lstat(path.c_str(), &info) != 0) {
      return absl::NotFoundError(absl::StrCat("no ", path));
    }
    errno = reason;
    return DiskError("cannot open", path);
  }
  const absl::Cleanup closed = [fd] { close(fd); };
  std::string text;
  char part[1 << 16];
  while (true) {
    const ssize_t got = read(fd, part, sizeof(part));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return DiskError("cannot read", path);
    if (got == 0) break;
    text.append(part, static_cast<size_t>(got));
  }
  const bool whole = text.size() >= kHeadBytes &&
                     absl::string_view(text).substr(0, kHeadBytes) ==
                         HeadOf(absl::string_view(text).substr(kHeadBytes));
  if (!whole) {
    return absl::DataLossError(absl::StrCat(path, " is cut off or damaged"));
  }
  return text.substr(kHeadBytes);
}

bool StateDir::IsFolder(const std::string& name) const {
  struct stat info {};
  return stat((fs::path(path_) / name).c_str(), &info) != 0 ||
         S_ISDIR(info.st_mode);
}

absl::Status StateDir::Remove(const std::string& name) const {
  const fs::path path = fs::path(path_) / name;
  std::error_code error;
  fs::remove_all(path, error);
  // A file where the path has a folder: there is nothing of that name.
  if (!error || error == std::errc::not_a_directory) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot remove ", path.string(), ": ", error.message()));
}

absl::StatusOr<std::string> StateDir::SetAside(
    const std::string& folder) const {
  const std::string from = (fs::path(path_) / folder).string();
  const fs::path aside = fs::path(folder).parent_path() / TemporaryName();
  const fs::path to = fs::path(path_) / aside;
  if (rename(from.c_str(), to.c_str()) != 0) {
    if (errno == ENOENT) return std::string();
    return DiskError("cannot rename", from);
  }
  SyncFolder(to.parent_path());
  return aside.string();
}

absl::StatusOr<std::string> StateDir::Keep(const std::string& name) const {
  const fs::path folder = fs::path(path_) / kDamaged;
  PIPELOOM_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string from = (fs::path(path_) / name).string();
  const std::string flat = absl::StrReplaceAll(name, {{"/", "~"}});
  std::string to;
  for (int n = 0;; ++n) {
    to = (folder / absl::StrCat(flat, ".", n)).string();
    struct stat info {};
    if (lstat(to.c_str(), &info) != 0) break;
  }
  if (rename(from.c_str(), to.c_str()) != 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("no ", from));
    return DiskError(absl::StrCat("cannot move to ", to, ":"), from);
  }
  SyncFolder(folder);
  SyncFolder(fs::path(from).parent_path());
  return to;
}

absl::StatusOr<std::vector<std::string>> StateDir::List(
    const std::string& folder) const {
  const fs::path path = fs::path(path_) / folder;
  DIR* open_folder = opendir(path.c_str());
  if (open_folder == nullptr) {
    const int reason = errno;
    struct stat info {};
    if (reason == ENOENT && lstat(path.c_str(), &info) != 0) {
      return std::vector<std::string>();
    }
    errno = reason;
    return DiskError("cannot read folder", path.string());
  }
  const absl::Cleanup closed = [open_folder] { closedir(open_folder); };
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(open_folder);
    if (entry == nullptr && errno != 0) {
      return DiskError("cannot read folder", path.string());
    }
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (absl::StartsWith(name, kTemporary)) {
      std::error_code ignored;
      fs::remove_all(path / name, ignored);
    } else {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace pipeloom::service
