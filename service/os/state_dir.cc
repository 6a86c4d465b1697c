#include "service/os/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/fingerprint.h"
#include "base/status_macros.h"

namespace pipeloom::service {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'p', 'l', 's', 't', 'a', 't', 'e', '1'};
constexpr char kTemporary[] = ".tmp-";
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
  if (fs::is_directory(folder)) return absl::OkStatus();
  if (folder.has_parent_path()) {
    PIPELOOM_RETURN_IF_ERROR(MakeFolders(folder.parent_path()));
  }
  std::error_code error;
  fs::create_directory(folder, error);
  if (error && !fs::is_directory(folder)) {
    return absl::UnavailableError(absl::StrCat(
        "cannot create folder ", folder.string(), ": ", error.message()));
  }
  SyncFolder(folder.parent_path());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDir>> StateDir::Open(
    const std::string& path) {
  const fs::path folder = fs::absolute(path);
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
  const fs::path path = fs::path(path_) / name;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("no ", path.string()));
  std::string text((std::istreambuf_iterator<char>(file)),
                   std::istreambuf_iterator<char>());
  const bool whole = text.size() >= kHeadBytes &&
                     absl::string_view(text).substr(0, kHeadBytes) ==
                         HeadOf(absl::string_view(text).substr(kHeadBytes));
  if (!whole) {
    return absl::DataLossError(
        absl::StrCat(path.string(), " is cut off or damaged"));
  }
  return text.substr(kHeadBytes);
}

void StateDir::Remove(const std::string& name) const {
  std::error_code ignored;
  fs::remove_all(fs::path(path_) / name, ignored);
}

std::string StateDir::SetAside(const std::string& folder) const {
  const fs::path aside = fs::path(folder).parent_path() / TemporaryName();
  std::error_code error;
  fs::rename(fs::path(path_) / folder, fs::path(path_) / aside, error);
  if (!error) return aside.string();
  Remove(folder);
  return "";
}

std::vector<std::string> StateDir::List(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(fs::path(path_) / folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, kTemporary)) {
      std::error_code ignored;
      fs::remove_all(entry.path(), ignored);
    } else {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace pipeloom::service
