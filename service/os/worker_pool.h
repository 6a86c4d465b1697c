// A pool of threads for work that takes longer than gRPC's own threads should:
// opening jobs, packing batches, writing to disk; and for answering with the
// results.
#ifndef PIPELOOM_SERVICE_OS_WORKER_POOL_H_
#define PIPELOOM_SERVICE_OS_WORKER_POOL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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
    changed_.notify_all();
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Queues work. Returns false if the queue is full.
  bool Post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (static_cast<int32_t>(waiting_.size()) >= most_waiting_) return false;
      waiting_.push_back(std::move(work));
    }
    changed_.notify_one();
    return true;
  }

 private:
  void Work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, stop, [&] { return !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  int32_t most_waiting_;
  std::mutex mutex_{};
  std::condition_variable_any changed_{};
  std::deque<std::function<void()>> waiting_{};
  std::vector<std::jthread> threads_{};  // Last, as they use all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_WORKER_POOL_H_
