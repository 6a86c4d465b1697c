// How far a rank has come in its program, which other threads and processes
// read to report on a rank that failed, hangs or is gone.
#ifndef PIPELOOM_RUNTIME_RANK_PROGRESS_H_
#define PIPELOOM_RUNTIME_RANK_PROGRESS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "ir/ids.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::runtime {

// The position of one rank. Written by the rank's thread; may lie in memory
// that processes share.
struct RankProgress {
  std::atomic<int64_t> step{0};
  // Index of the instruction under way; the program's length after the last.
  std::atomic<uint64_t> position{0};
  // Whether it waits for another rank: the other side of a transfer, or the
  // commit point.
  std::atomic<bool> blocked{false};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

// A scope in which the rank is marked as blocked.
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

// Returns for example "rank 2, step 5, instruction 7 (compute task 3)".
std::string DescribePlace(const ExecutionPlan& plan, RankId rank,
                          uint64_t position);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_RANK_PROGRESS_H_
