// The lower bound of a step whose memory choices are still open.
#ifndef PIPELOOM_PLANNER_BOUNDS_PLAN_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_PLAN_BOUND_H_

#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/bounds/lower_bound.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// What every selection of the choices is at least: each stage pair holds the
// least of its candidates, from its forward's start to its backward's end, and
// while the backward runs the least of their peaks, and is as fast as the
// fastest. Any schedule of any selection is one of this graph too. `graph` has
// everything kept. O(pairs x candidates + edges).
FlatGraph LeastMemory(const StageGraph& graph,
                      const partition::StepMemory& memory);

// Of `graph` within its own limits and, with `memory`, of every selection of
// its choices, by LeastMemory. Received tensors are not counted. Cost as
// CheapLowerBound's; beyond 20,000 tasks memory is ignored.
NamedBound PlanBound(const StageGraph& graph,
                     const partition::StepMemory* memory);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_PLAN_BOUND_H_
