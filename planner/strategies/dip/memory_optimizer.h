// DIP's memory step (arXiv 2504.14145, section 5.3): for a schedule made with
// the leanest choices, a candidate for each stage pair, so that the sum of the
// pairs' times is least and each rank stays within its limit: one small 0/1
// program per rank, from a greedy answer, to a gap of 5 %.
//
// Settled here, as the paper does not say: the limit is checked at the starts
// of tasks in the order of the rank (where the memory peaks are), so it holds
// however times shift; transient bytes of a recomputing backward count; then
// the order is timed anew with the chosen candidates, and that time counts.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_MEMORY_OPTIMIZER_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_MEMORY_OPTIMIZER_H_

#include <cstdint>

#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "planner/memory/choose_memory.h"

namespace pipeloom::planner {

// One per thread. Stays where it is made.
class MemoryOptimizer {
 public:
  // Keeps references. `graph`: with everything kept.
  MemoryOptimizer(const StageGraph& graph, const partition::StepMemory& memory);
  MemoryOptimizer(const MemoryOptimizer&) = delete;
  MemoryOptimizer& operator=(const MemoryOptimizer&) = delete;

  // Step time in ns of a topological sequence of all tasks when each pair has
  // its fastest candidate, whatever that holds: no choice is faster.
  int64_t LeastTime(absl::Span<const int32_t> sequence);
  // Step time in ns with selection(); kNoLimit when nothing fits.
  int64_t Optimize(const RankOrders& orders);
  const partition::MemorySelection& selection() const {
    return chooser_.selection();
  }

 private:
  MemoryChooser chooser_;
  FlatGraph fastest_;
  Retimer retimer_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_MEMORY_OPTIMIZER_H_
