// How far a rank has come in its program, for other threads and processes to
// see: what is reported of a rank that failed, hangs or is gone.
#ifndef PIPELOOM_RUNTIME_RANK_PROGRESS_H_
#define PIPELOOM_RUNTIME_RANK_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "ir/ids.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::runtime {

// Written by the rank's thread. May lie in memory that processes share.
struct RankProgress {
  std::atomic<int64_t> step{0};
  // Index of the instruction under way; the program's length at its end.
  std::atomic<uint64_t> position{0};
  // It waits for another rank: a transfer's other side, or the commit point.
  std::atomic<bool> blocked{false};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

// Marks the rank as blocked while it lives.
class BlockedScope {
 public:
  explicit BlockedScope(RankProgress* progress) : progress_(progress) {
    progress_->blocked.store(true, std::memory_order_relaxed);
  }
  ~BlockedScope() {
    progress_->blocked.store(false, std::memory_order_relaxed);
  }
  BlockedScope(const BlockedScope&) = delete;
  BlockedScope& operator=(const BlockedScope&) = delete;

 private:
  RankProgress* progress_;
};

// "rank 2, step 5, instruction 7 (compute task 3)".
std::string DescribePlace(const ExecutionPlan& plan, RankId rank,
                          uint64_t position);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_RANK_PROGRESS_H_
