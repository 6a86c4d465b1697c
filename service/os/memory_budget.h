// A budget of bytes over all callers and over each one, such as for requests
// that are being handled and answers that were not read yet. Threads: any.
#ifndef PIPELOOM_SERVICE_OS_MEMORY_BUDGET_H_
#define PIPELOOM_SERVICE_OS_MEMORY_BUDGET_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/units.h"

namespace pipeloom::service {

class MemoryBudget {
 public:
  // At most `all` bytes for all callers together, and half of it for one.
  explicit MemoryBudget(Bytes all) : all_(all.count()) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Takes bytes for a caller. Returns false, and takes nothing, if that is over
  // the budget. A caller that holds nothing may take more than its half, so
  // that something large is not refused for ever.
  bool Take(const std::string& caller, int64_t bytes) {
    const MutexLock lock(&mutex_);
    if (used_ > 0 && used_ + bytes > all_) return false;
    const auto found = by_caller_.find(caller);
    const int64_t held = found == by_caller_.end() ? 0 : found->second;
    if (held > 0 && held + bytes > all_ / 2) return false;
    used_ += bytes;
    by_caller_[caller] += bytes;
    return true;
  }
  // Gives back bytes that were taken.
  void Give(const std::string& caller, int64_t bytes) {
    const MutexLock lock(&mutex_);
    used_ -= bytes;
    const auto found = by_caller_.find(caller);
    found->second -= bytes;
    if (found->second == 0) by_caller_.erase(found);
  }
  int64_t used() const {
    const MutexLock lock(&mutex_);
    return used_;
  }
  int64_t all() const { return all_; }

 private:
  const int64_t all_;
  mutable Mutex mutex_{};
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> by_caller_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_MEMORY_BUDGET_H_
