// Polling with backoff: between two looks, a waiting rank yields for as long as
// messages within a host take, then sleeps longer and longer, so that more
// ranks than cores make progress.
#ifndef PIPELOOM_RUNTIME_BACKOFF_H_
#define PIPELOOM_RUNTIME_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// The pauses of one wait; make a new object for each wait.
class Backoff {
 public:
  // `own_core`: no other rank needs this rank's core. Then it only yields for
  // 2 ms instead of 0.2 ms, as long as a transfer of some megabytes takes,
  // because such a transfer advances only while both sides poll.
  explicit Backoff(bool own_core = false)
      : look_hard_(own_core ? std::chrono::microseconds(2000)
                            : std::chrono::microseconds(200)) {}

  // Yields or sleeps once.
  void Pause() {
    const WallTime now = WallNow();
    if (since_ == WallTime{}) since_ = now;
    if (now - since_ < look_hard_) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 5 / 4, kLongestSleep);
  }

 private:
  static constexpr WallDuration kLongestSleep = std::chrono::microseconds(200);
  WallDuration look_hard_;
  WallTime since_{};  // Time of the first pause.
  WallDuration sleep_ = std::chrono::microseconds(10);
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_BACKOFF_H_
