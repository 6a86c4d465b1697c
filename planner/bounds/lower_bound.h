// What no schedule of a StageGraph can beat.
//
// The largest of several bounds on the step time, epilogues included:
//  - "chain": the longest chain of dependencies;
//  - "rank load": per rank, the best preemptive order of its tasks when each
//    may start once its own chain ahead is done (head) and is followed by its
//    own chain (tail): Jackson's preemptive schedule (Carlier, Pinson 1989);
//  - "overtaking": what the longest chain waits for others that go the same
//  way,
//    ahead of it, behind it or past it (planner/bounds/overtaking_bound.h);
//  - "ramp": what a rank idles while its first tasks come to it one after
//    another and its last ones leave so (planner/bounds/ramp_bound.h);
//  - "memory": what a rank cannot do while its memory is full at both ends of
//    the step (planner/bounds/memory_bound.h);
//  - "time windows": a step time is assumed and refuted
//  (planner/bounds/window_bound.h;
//    StrongLowerBound alone).
// The bounds with memory are rounded up to a multiple of the greatest common
// divisor of all times.
// Cost: O(tasks log tasks + edges) but for the last.
#ifndef PIPELOOM_PLANNER_BOUNDS_LOWER_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_LOWER_BOUND_H_

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "ir/plan/stage_graph.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

struct NamedBound {
  int64_t time = 0;              // In ns.
  const char* source = "chain";  // As above; where equal, the first.
};

// Without memory limits, so that it holds for lowered limits and for every
// memory choice too.
Duration LowerBound(const StageGraph& graph);
// In ns.
int64_t LowerBound(const FlatGraph& graph);
NamedBound LowerBoundWithoutMemory(const FlatGraph& graph);
// With the memory limits of this very graph.
NamedBound CheapLowerBound(const FlatGraph& graph);

// No less than CheapLowerBound. An evaluation of the budget is a step time
// assumed; without a deadline the result is the same everywhere.
NamedBound StrongLowerBound(const FlatGraph& graph, const SearchBudget& budget);

// Longest chains before each task's start and after its end, in ns.
struct HeadsAndTails {
  std::vector<int64_t> head{};
  std::vector<int64_t> tail{};
};
HeadsAndTails ChainsOf(const FlatGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_LOWER_BOUND_H_
