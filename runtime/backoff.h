// How a waiting rank passes its time: it yields for as long as messages within
// a host take, then sleeps, for longer and longer, so that more ranks than
// cores get on. One object a wait.
#ifndef PIPELOOM_RUNTIME_BACKOFF_H_
#define PIPELOOM_RUNTIME_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

class Backoff {
 public:
  void Pause() {
    if (WallNow() - since_ < kPollHard) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 5 / 4, kLongestSleep);
  }

 private:
  static constexpr WallDuration kPollHard = std::chrono::microseconds(200);
  static constexpr WallDuration kLongestSleep = std::chrono::microseconds(200);
  WallTime since_ = WallNow();
  WallDuration sleep_ = std::chrono::microseconds(10);
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_BACKOFF_H_
