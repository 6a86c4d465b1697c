// A timer that calls functions at given times, on one thread of its own. It
// uses the steady clock, so changes of the wall clock have no effect.
#ifndef PIPELOOM_SERVICE_OS_DEADLINE_TIMER_H_
#define PIPELOOM_SERVICE_OS_DEADLINE_TIMER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

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
      const std::lock_guard lock(mutex_);
      calls_.emplace(time, std::move(call));
    }
    changed_.notify_one();
  }

 private:
  void Work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (calls_.empty()) {
        changed_.wait(lock, stop, [&] { return !calls_.empty(); });
        continue;
      }
      const Clock::time_point next = calls_.begin()->first;
      if (Clock::now() < next) {
        changed_.wait_until(lock, stop, next, [&] {
          return !calls_.empty() && calls_.begin()->first < next;
        });
        continue;
      }
      const std::function<void()> call = std::move(calls_.begin()->second);
      calls_.erase(calls_.begin());
      lock.unlock();
      call();
      lock.lock();
    }
  }

  std::mutex mutex_{};
  std::condition_variable_any changed_{};
  std::multimap<Clock::time_point, std::function<void()>> calls_{};
  std::jthread thread_;  // Last, as it uses all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_DEADLINE_TIMER_H_
