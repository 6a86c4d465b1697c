// The lower bound of a step whose memory choices are still open.
#ifndef PIPELOOM_PLANNER_BOUNDS_PLAN_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_PLAN_BOUND_H_

#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/bounds/lower_bound.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Returns a graph that is no harder than that of any selection of the choices:
// each stage pair holds the least of its candidates from its forward's start to
// its backward's end, needs the least of their peaks while the backward runs,
// and is as fast as the fastest. Any schedule of any selection is also one of
// this graph. `graph` has everything kept. O(pairs x candidates + edges).
FlatGraph LeastMemory(const StageGraph& graph,
                      const partition::StepMemory& memory);

// Returns the bound for `graph` within its own limits and, with `memory`, for
// every selection of its choices (by LeastMemory). Received tensors are not
// counted. Costs as much as CheapLowerBound; beyond 20,000 tasks it is a quick
// one.
NamedBound PlanBound(const StageGraph& graph,
                     const partition::StepMemory* memory);

// Returns a lower one for every selection of `memory`, of chains, loads and the
// price of memory only, in a fifth of the time.
NamedBound QuickPlanBound(const StageGraph& graph,
                          const partition::StepMemory& memory);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_PLAN_BOUND_H_
