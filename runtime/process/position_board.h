// One rank's RankProgress in memory that the other processes of its host can
// read, even after the rank was killed: so that a lost rank's instruction can
// be named exactly. The memory has no name anywhere (memfd) and is gone with
// the last process that maps it. Linux; elsewhere Create makes a private one
// and Open fails.
#ifndef PIPELOOM_RUNTIME_PROCESS_POSITION_BOARD_H_
#define PIPELOOM_RUNTIME_PROCESS_POSITION_BOARD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/rank_progress.h"

namespace pipeloom::runtime {

class PositionBoard {
 public:
  // Its own, which others can open by address() on this host.
  static absl::StatusOr<std::unique_ptr<PositionBoard>> Create();
  // Another process's. NotFound: it cannot be read from here.
  static absl::StatusOr<std::unique_ptr<PositionBoard>> Open(
      absl::string_view address);
  ~PositionBoard();
  PositionBoard(const PositionBoard&) = delete;
  PositionBoard& operator=(const PositionBoard&) = delete;

  // "pid/file/key", without blanks or commas.
  const std::string& address() const { return address_; }
  RankProgress* progress() const { return &shared_->progress; }

 private:
  // The key tells our memory from that of a like-numbered process elsewhere.
  struct Shared {
    uint64_t key = 0;
    RankProgress progress{};
  };
  PositionBoard(Shared* shared, int file, std::string address)
      : shared_(shared), file_(file), address_(std::move(address)) {}

  Shared* shared_;
  int file_;  // -1: opened.
  std::string address_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_POSITION_BOARD_H_
