// DIP's stage interleaving (arXiv 2504.14145, section 5.2). Each rank has a
// queue of forwards and one of backwards, sorted by priority. The rank that can
// start soonest goes next. If both queues have a stage that has arrived by the
// end of the rank's last one, the rank takes a forward and a backward in turns
// (as 1F1B does); otherwise it takes the stage that arrives first. A rank whose
// memory is full does not use its forward queue until backwards have given some
// memory back.
//
// Some points that the paper leaves open are settled as follows:
// - A queue's candidate is the best by priority among those that have arrived,
//   or else the first to arrive; ties go by task id. If forward and backward
//   arrive at the same later time, the backward is taken.
// - Transfer times count in arrivals.
// - A rank's first stage is a forward, if it has the choice.
// - Memory is full if planner/core/memory_guard.h says so: forwards that could
//   end in a deadlock are not admitted, so every problem in which one
//   microbatch fits is solved. The paper's rule (over the limit: no forwards)
//   can get stuck when a backward waits for another chunk's forward on a full
//   rank.
// - Separate weight gradients count as backwards.
//
// This code is deliberately separate from planner/construct/list_scheduler.h,
// its tuned relative. O(tasks x queue length).
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_DUAL_QUEUE_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_DUAL_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_guard.h"

namespace pipeloom::planner {

// Interleaves stages, and keeps its workspace between runs. Use one per thread.
class DualQueue {
 public:
  // Keeps a reference to `graph`.
  explicit DualQueue(const FlatGraph& graph);

  // Returns whether one microbatch at a time fits; only then may Run be called.
  bool CanRun() const { return guard_.shortage().task < 0; }
  const MemoryShortage& shortage() const { return guard_.shortage(); }
  // Returns whether any rank's limit can be reached.
  bool MemoryBinds() const { return guard_.any_binds(); }

  // Sets the share of what microbatches that have begun may still need that
  // later runs keep free for them (MemoryGuard::Reset); 0 at first.
  void set_reserve(double reserve) { reserve_ = reserve; }
  // Schedules all tasks and returns the step time in ns. `priority` is indexed
  // by task; the smallest goes first.
  int64_t Run(absl::Span<const int64_t> priority);
  // Returns all tasks of the last Run as they were placed, by start time: a
  // topological sequence.
  absl::Span<const int32_t> sequence() const { return sequence_; }
  // Returns their starts in ns, indexed by task.
  absl::Span<const int64_t> start() const { return start_; }

 private:
  enum Queue { kForwards, kBackwards };
  struct Choice {
    int32_t task = -1;
    int64_t start = 0;
  };
  struct Rank {
    std::vector<int32_t> queue[2]{};
    int64_t last_end = 0;
    Queue last = kBackwards;
    Choice next{};
    bool stale = true;  // Whether `next` must be found again.
  };
  // Returns the rank's candidate of a queue. Among forwards whose microbatch
  // has not begun, only the best by priority is tried; with `all_fresh` each of
  // them.
  Choice BestOf(const Rank& rank, Queue queue,
                absl::Span<const int64_t> priority, bool all_fresh) const;
  void Decide(Rank& rank, absl::Span<const int64_t> priority,
              bool all_fresh) const;

  const FlatGraph* graph_;
  MemoryGuard guard_;
  double reserve_ = 0;
  std::vector<Rank> ranks_;
  std::vector<int32_t> missing_;  // Indexed by task: producers not placed yet.
  std::vector<int64_t> arrival_;
  std::vector<int64_t> start_;
  std::vector<int32_t> sequence_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_DUAL_QUEUE_H_
