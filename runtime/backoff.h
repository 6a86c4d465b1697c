// How a waiting rank passes its time between looks: it yields for as long as
// messages within a host take, then sleeps, for longer and longer, so that
// more ranks than cores get on. One object a wait.
#ifndef PIPELOOM_RUNTIME_BACKOFF_H_
#define PIPELOOM_RUNTIME_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

class Backoff {
 public:
  // `own_core`: no other rank needs this one's core, so it looks hard for as
  // long as some megabytes take, which get on by looks of both sides.
  explicit Backoff(bool own_core = false)
      : look_hard_(own_core ? std::chrono::microseconds(2000)
                            : std::chrono::microseconds(200)) {}

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
  WallTime since_{};  // Of the first pause.
  WallDuration sleep_ = std::chrono::microseconds(10);
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_BACKOFF_H_
