// Lower bounds of the step time of every schedule of a StageGraph.
//
// The result is the largest of several bounds, epilogues included:
//
// - "chain": the longest chain of dependencies.
// - "rank load": for each rank, the best preemptive order of its tasks when
//   each may start once its own chain before it is done (head) and is followed
//   by its own chain (tail): Jackson's preemptive schedule (Carlier, Pinson
//   1989).
// - "overtaking": the time that the longest chain waits for others that go the
//   same way, ahead of it, behind it or past it
//   (planner/bounds/overtaking_bound.h).
// - "ramp": the time that a rank idles while its first tasks come to it one
//   after another and its last ones leave in the same way
//   (planner/bounds/ramp_bound.h).
// - "memory": the work that a rank cannot do while its memory is full at both
//   ends of the step (planner/bounds/memory_bound.h).
// - "area": bytes x the time for which they are held at least, against those
//   that the rank has (planner/bounds/area_bound.h).
// - "time windows": a step time is assumed and refuted
//   (planner/bounds/window_bound.h); only in StrongLowerBound.
//
// CheapLowerBound and StrongLowerBound round up to a multiple of the greatest
// common divisor of all times. Cost: O(tasks log tasks + edges) except for the
// last.
#ifndef PIPELOOM_PLANNER_BOUNDS_LOWER_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_LOWER_BOUND_H_

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "ir/plan/stage_graph.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

// A lower bound and the name of the bound that gave it.
struct NamedBound {
  int64_t time = 0;              // In ns.
  const char* source = "chain";  // One of the names above; the first on ties.
};

// Returns a bound that ignores memory limits, so it holds for lowered limits
// and for every memory choice too; as a Duration, or in ns.
Duration LowerBound(const StageGraph& graph);
int64_t LowerBound(const FlatGraph& graph);
NamedBound LowerBoundWithoutMemory(const FlatGraph& graph);
// Returns a bound for the memory limits of this very graph.
NamedBound CheapLowerBound(const FlatGraph& graph);

// Returns a bound of at least CheapLowerBound. An evaluation of the budget is
// one assumed step time; without a deadline the result is deterministic.
NamedBound StrongLowerBound(const FlatGraph& graph, const SearchBudget& budget);

// Longest chains before each task's start and after its end, in ns; indexed by
// task.
struct HeadsAndTails {
  std::vector<int64_t> head{};
  std::vector<int64_t> tail{};
};
// Finds the longest chains of a graph. O(tasks + edges).
HeadsAndTails ChainsOf(const FlatGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_LOWER_BOUND_H_
