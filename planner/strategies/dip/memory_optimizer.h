// DIP's memory step (arXiv 2504.14145, section 5.3). For a schedule made with
// the choices of least memory, it chooses a candidate for each stage pair so
// that the sum of the pairs' times is least and each rank stays within its
// limit: one small 0/1 program for each rank, from a greedy answer, to a gap of
// 5 %.
//
// Some points that the paper leaves open are settled as follows. The limit is
// checked at the starts of tasks in the order of the rank (where the memory
// peaks are), so it holds however times shift. Transient bytes of a recomputing
// backward count. Finally the order is timed anew with the chosen candidates,
// and that time counts.
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

// The memory step for the orders of one graph. Use one per thread; not movable.
class MemoryOptimizer {
 public:
  // Keeps references. `graph` has everything kept.
  MemoryOptimizer(const StageGraph& graph, const partition::StepMemory& memory);
  MemoryOptimizer(const MemoryOptimizer&) = delete;
  MemoryOptimizer& operator=(const MemoryOptimizer&) = delete;

  // Returns the step time in ns of a topological sequence of all tasks when
  // each pair has its fastest candidate, whatever memory that takes: no choice
  // is faster.
  int64_t LeastTime(absl::Span<const int32_t> sequence);
  // Chooses memory for the orders. Returns the step time in ns with
  // selection(); kNoLimit if nothing fits.
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
