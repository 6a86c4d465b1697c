// One rank's RankProgress in memory that the other processes of its host can
// read, even after the rank was killed, so that a lost rank's instruction can
// be named exactly. The memory has no name in the file system (memfd) and is
// freed with the last process that maps it. Linux; elsewhere Create makes
// private memory and Open fails.
#ifndef PIPELOOM_RUNTIME_PROCESS_POSITION_BOARD_H_
#define PIPELOOM_RUNTIME_PROCESS_POSITION_BOARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/rank_progress.h"

namespace pipeloom::runtime {

// A mapping of one rank's board, its own or another's.
class PositionBoard {
 public:
  // Makes this process's board, which others on this host can open by
  // address().
  static absl::StatusOr<std::unique_ptr<PositionBoard>> Create();
  // Opens another process's board. NotFound: it cannot be read from here.
  static absl::StatusOr<std::unique_ptr<PositionBoard>> Open(
      absl::string_view address);
  ~PositionBoard();
  PositionBoard(const PositionBoard&) = delete;
  PositionBoard& operator=(const PositionBoard&) = delete;

  // Returns "pid/file/key", without blanks or commas.
  const std::string& address() const { return address_; }
  RankProgress* progress() const { return &shared_->progress; }

 private:
  // The key tells this memory from that of a process with the same number
  // elsewhere.
  struct Shared {
    uint64_t key = 0;
    RankProgress progress{};
  };
  PositionBoard(Shared* shared, int file, std::string address)
      : shared_(shared), file_(file), address_(std::move(address)) {}

  Shared* shared_;
  int file_;  // -1 for a board of another process.
  std::string address_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_POSITION_BOARD_H_
