// The lower bound of a step whose memory choices are still open.
#ifndef PIPELOOM_PLANNER_PLAN_BOUND_H_
#define PIPELOOM_PLANNER_PLAN_BOUND_H_

#include "ir/stage_graph.h"
#include "partition/memory_candidates.h"
#include "planner/lower_bound.h"

namespace pipeloom::planner {

// Of `graph` within its own limits and, with `memory`, of every selection of
// its choices: `graph` has everything kept then. Each stage pair is taken to
// hold the least of its candidates, from its forward's start to its backward's
// end, and to be as fast as the fastest; any schedule of any selection is one
// of that graph too. Received tensors are not counted. Cost as
// CheapLowerBound's; beyond 20,000 tasks memory is ignored.
NamedBound PlanBound(const StageGraph& graph,
                     const partition::StepMemory* memory);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PLAN_BOUND_H_
