// A timer that calls functions at given times, on one thread of its own. It
// uses the steady clock, so changes of the wall clock have no effect.
#ifndef PIPELOOM_SERVICE_OS_DEADLINE_TIMER_H_
#define PIPELOOM_SERVICE_OS_DEADLINE_TIMER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace pipeloom::service {

class DeadlineTimer {
 public:
  using Clock = std::chrono::steady_clock;

  DeadlineTimer()
      : thread_([this](const std::stop_token& stop) { Work(stop); }) {}
  // Drops the functions that are due later.
  ~DeadlineTimer() = default;
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // Calls `call` at `time`. REQUIRES: `call` is short.
  void At(Clock::time_point time, std::function<void()> call) {
    {
      const MutexLock lock(&mutex_);
      calls_.emplace(time, std::move(call));
    }
    changed_.NotifyAll();
  }

 private:
  void Work(const std::stop_token& stop) {
    const std::stop_callback wake(stop, [this] {
      // Not between the thread's look at its condition and its wait.
      { const MutexLock lock(&mutex_); }
      changed_.NotifyAll();
    });
    while (!stop.stop_requested()) {
      if (const std::function<void()> call = WaitForNext(stop)) call();
    }
  }
  // Waits for the next function that is due. Returns an empty one if there is
  // another to wait for, or if a stop was requested.
  std::function<void()> WaitForNext(const std::stop_token& stop) {
    const MutexLock lock(&mutex_);
    const Clock::time_point next =
        calls_.empty() ? Clock::time_point::max() : calls_.begin()->first;
    const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stop.stop_requested() ||
             (!calls_.empty() && calls_.begin()->first < next);
    };
    if (calls_.empty()) {
      changed_.Wait(&mutex_, changed);
      return {};
    }
    if (changed_.WaitUntil(&mutex_, next, changed)) return {};
    std::function<void()> call = std::move(calls_.begin()->second);
    calls_.erase(calls_.begin());
    return call;
  }

  Mutex mutex_{};
  CondVar changed_{};
  std::multimap<Clock::time_point, std::function<void()>> calls_
      ABSL_GUARDED_BY(mutex_){};
  std::jthread thread_;  // Last, as it uses all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_DEADLINE_TIMER_H_
