// A pool of threads for work that takes longer than gRPC's own threads should:
// opening jobs, packing batches, writing to disk; and for answering with the
// results.
#ifndef PIPELOOM_SERVICE_OS_WORKER_POOL_H_
#define PIPELOOM_SERVICE_OS_WORKER_POOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace pipeloom::service {

// A fixed number of threads that take work from one queue.
class WorkerPool {
 public:
  // At most `most_waiting` items may be queued. Each thread calls `begin` once.
  WorkerPool(int32_t threads, int32_t most_waiting,
             const std::function<void()>& begin = {})
      : most_waiting_(most_waiting) {
    for (int32_t t = 0; t < threads; ++t) {
      threads_.emplace_back([this, begin](const std::stop_token& s) {
        if (begin) begin();
        Work(s);
      });
    }
  }
  // Finishes all queued work first.
  ~WorkerPool() {
    for (std::jthread& thread : threads_) thread.request_stop();
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Queues work. Returns false if the queue is full.
  bool Post(std::function<void()> work) {
    {
      const MutexLock lock(&mutex_);
      if (static_cast<int32_t>(waiting_.size()) >= most_waiting_) return false;
      waiting_.push_back(std::move(work));
    }
    changed_.NotifyAll();
    return true;
  }

 private:
  void Work(const std::stop_token& stop) {
    const std::stop_callback wake(stop, [this] {
      // Not between the thread's look at its condition and its wait.
      { const MutexLock lock(&mutex_); }
      changed_.NotifyAll();
    });
    while (const std::function<void()> work = Next(stop)) work();
  }
  // Waits for work. Returns an empty function if a stop was requested and
  // nothing is left.
  std::function<void()> Next(const std::stop_token& stop) {
    const MutexLock lock(&mutex_);
    const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !waiting_.empty() || stop.stop_requested();
    };
    changed_.Wait(&mutex_, due);
    if (waiting_.empty()) return {};
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    return work;
  }

  const int32_t most_waiting_;
  Mutex mutex_{};
  CondVar changed_{};
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_){};
  std::vector<std::jthread> threads_{};  // Last, as they use all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_WORKER_POOL_H_
