#include "runtime/process/position_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

absl::StatusOr<std::unique_ptr<PositionBoard>> PositionBoard::Create() {
  void* memory = MAP_FAILED;
  int file = -1;
#ifdef __linux__
  file = memfd_create("pipeloom-position", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, sizeof(Shared)) == 0) {
    memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED,
                  file, 0);
  }
#else
  memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
  if (memory == MAP_FAILED) {
    const int error = errno;
    if (file >= 0) close(file);
    return absl::UnavailableError(absl::StrFormat(
        "no memory to share a rank's position: %s", std::strerror(error)));
  }
  auto* shared = new (memory) Shared;
  // Differs from the key of an earlier process with the same id.
  shared->key = static_cast<uint64_t>(WallNow().time_since_epoch().count());
  return std::unique_ptr<PositionBoard>(new PositionBoard(
      shared, file, absl::StrFormat("%d/%d/%d", getpid(), file, shared->key)));
}

absl::StatusOr<std::unique_ptr<PositionBoard>> PositionBoard::Open(
    absl::string_view address) {
  const std::vector<std::string> parts = absl::StrSplit(address, '/');
  int32_t process = 0;
  int32_t number = 0;
  uint64_t key = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &process) ||
      !absl::SimpleAtoi(parts[1], &number) ||
      !absl::SimpleAtoi(parts[2], &key)) {
    return absl::NotFoundError(
        absl::StrFormat("\"%s\" is no position board", std::string(address)));
  }
  const int file =
      open(absl::StrFormat("/proc/%d/fd/%d", process, number).c_str(),
           O_RDONLY | O_CLOEXEC);
  void* memory = MAP_FAILED;
  if (file >= 0) {
    memory = mmap(nullptr, sizeof(Shared), PROT_READ, MAP_SHARED, file, 0);
    close(file);
  }
  if (memory == MAP_FAILED) {
    return absl::NotFoundError(absl::StrFormat(
        "the position board \"%s\" is not of this host", std::string(address)));
  }
  auto board = std::unique_ptr<PositionBoard>(new PositionBoard(
      static_cast<Shared*>(memory), -1, std::string(address)));
  if (board->shared_->key != key) {
    return absl::NotFoundError(absl::StrFormat(
        "the position board \"%s\" is not of this host", std::string(address)));
  }
  return board;
}

PositionBoard::~PositionBoard() {
  munmap(shared_, sizeof(Shared));
  if (file_ >= 0) close(file_);
}

}  // namespace pipeloom::runtime
