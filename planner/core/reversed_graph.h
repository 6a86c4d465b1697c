// A step with its time running backwards, as a problem of its own.
//
// Every rule and pattern of the list scheduler builds a schedule from its
// beginning, so what is left over gathers at its end. Built from the end, the
// same rules give other schedules; where memory is short and microbatches
// differ, often better ones. A schedule of the reversed graph, read backwards,
// is one of the graph.
//
// Task t is task n - 1 - t there; edges are turned round, forwards and
// backwards change names, and a task takes what it used to give back. Epilogues
// are left out, as they come ahead of everything: times of the two graphs
// differ by them.
#ifndef PIPELOOM_PLANNER_CORE_REVERSED_GRAPH_H_
#define PIPELOOM_PLANNER_CORE_REVERSED_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Whether every rank gives back all that it took, so that memory is empty at
// both ends, and all epilogues are equal, so that the best schedules of both
// graphs are the same.
bool CanReverse(const StageGraph& graph);

// REQUIRES: CanReverse(graph). O(tasks + edges).
StageGraph InReversedTime(const StageGraph& graph);

// A sequence of all tasks of one of the two graphs as that of the other.
std::vector<int32_t> ReadBackwards(absl::Span<const int32_t> sequence);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_REVERSED_GRAPH_H_
