// DIP's stage interleaving (arXiv 2504.14145, section 5.2): each rank has a
// queue of forwards and one of backwards, by priority. The rank that can start
// soonest goes next. If both queues have a stage that has arrived by the end of
// the rank's last one, it takes a forward and a backward in turns (as 1F1B
// does); else the stage that arrives first. A rank whose memory is full has its
// forward queue switched off until backwards have given some back.
//
// Settled here, as the paper does not say:
// - a queue's candidate is the best of priority among those that have arrived,
//   or else the first to arrive; ties by task id; forward and backward that
//   arrive at the same later time: the backward;
// - transfer times count in arrivals;
// - a rank's first stage is a forward, if it has the choice;
// - full means what planner/core/memory_guard.h says: forwards that could end
// in a
//   deadlock are not admitted, and so every problem in which one microbatch
//   fits is solved. The paper's rule (over the limit: no forwards) can get
//   stuck when a backward waits for another chunk's forward on a full rank;
// - weight gradients that stand apart are backwards.
//
// Own code, on purpose: planner/construct/list_scheduler.h is the tuned
// relative. O(tasks x queue length).
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_DUAL_QUEUE_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_DUAL_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_guard.h"

namespace pipeloom::planner {

// Keeps its workspace between runs. One per thread.
class DualQueue {
 public:
  // Keeps a reference to `graph`.
  explicit DualQueue(const FlatGraph& graph);

  // Whether one microbatch fits at a time; only then may Run be called.
  bool CanRun() const { return guard_.shortage().task < 0; }
  const MemoryShortage& shortage() const { return guard_.shortage(); }

  // `priority`: by task, the smallest goes first. Returns the step time in ns.
  int64_t Run(absl::Span<const int64_t> priority);
  // Of the last Run: all tasks as they were placed, by start time; a
  // topological sequence.
  absl::Span<const int32_t> sequence() const { return sequence_; }
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
    bool stale = true;  // `next` must be found again.
  };
  // Of forwards whose microbatch has not begun, the best of priority only is
  // looked at; with `all_fresh` each of them.
  Choice BestOf(const Rank& rank, Queue queue,
                absl::Span<const int64_t> priority, bool all_fresh) const;
  void Decide(Rank& rank, absl::Span<const int64_t> priority,
              bool all_fresh) const;

  const FlatGraph* graph_;
  MemoryGuard guard_;
  std::vector<Rank> ranks_;
  std::vector<int32_t> missing_;  // By task: producers not placed.
  std::vector<int64_t> arrival_;
  std::vector<int64_t> start_;
  std::vector<int32_t> sequence_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_DUAL_QUEUE_H_
