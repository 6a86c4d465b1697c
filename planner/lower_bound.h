// What no schedule of a StageGraph can beat.
//
// The larger of two bounds on the step time, epilogues included:
//  - the longest chain of dependencies;
//  - per rank, the best preemptive order of its tasks when each may start once
//    its own chain ahead is done (head) and is followed by its own chain
//    (tail): Jackson's preemptive schedule (Carlier, Pinson 1989).
// Memory limits are ignored, so it may be far off where they bind.
// O(tasks log tasks + edges).
#ifndef PIPELOOM_PLANNER_LOWER_BOUND_H_
#define PIPELOOM_PLANNER_LOWER_BOUND_H_

#include "base/units.h"
#include "ir/stage_graph.h"
#include "planner/flat_graph.h"

namespace pipeloom::planner {

Duration LowerBound(const StageGraph& graph);
// In ns.
int64_t LowerBound(const FlatGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LOWER_BOUND_H_
