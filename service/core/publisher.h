// Hands out plans: a thread that answers calls, before all other work of the
// process, and the listeners that hear of every plan.
#ifndef PIPELOOM_SERVICE_CORE_PUBLISHER_H_
#define PIPELOOM_SERVICE_CORE_PUBLISHER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "service/jobs/waiting_calls.h"
#include "service/os/thread_priority.h"
#include "service/os/worker_pool.h"

namespace pipeloom::service {

// Thread-safe. The destructor answers first what was posted.
class Publisher {
 public:
  using Listener = std::function<void(const v1::PlanStatistics&)>;

  // Runs `work` on the publisher's thread, in the order of the calls.
  void Post(std::function<void()> work) { answers_.Post(std::move(work)); }
  // Answers calls on the publisher's thread.
  void Answer(std::vector<WaitingCall> calls, PlanOrError outcome) {
    if (calls.empty()) return;
    answers_.Post([calls = std::move(calls), outcome = std::move(outcome)] {
      for (const WaitingCall& call : calls) call.done(outcome);
    });
  }

  // Calls `listener` for everything that Tell is given, from any thread; it
  // must be quick. Returns a number for Unsubscribe.
  int64_t Subscribe(Listener listener) {
    const MutexLock lock(&mutex_);
    listeners_.emplace(next_, std::move(listener));
    return next_++;
  }
  void Unsubscribe(int64_t number) {
    const MutexLock lock(&mutex_);
    listeners_.erase(number);
  }
  // Calls all listeners, without a lock.
  void Tell(const v1::PlanStatistics& statistics) const {
    std::vector<Listener> listeners;
    {
      const MutexLock lock(&mutex_);
      for (const auto& [number, l] : listeners_) listeners.push_back(l);
    }
    for (const Listener& listener : listeners) listener(statistics);
  }

 private:
  mutable Mutex mutex_{};
  std::map<int64_t, Listener> listeners_ ABSL_GUARDED_BY(mutex_){};
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  WorkerPool answers_{1, std::numeric_limits<int32_t>::max(), AnswerAtOnce};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_PUBLISHER_H_
