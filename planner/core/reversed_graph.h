// The problem of a step with its time running backwards.
//
// Every rule and pattern of the list scheduler builds a schedule from its
// beginning, so leftovers gather at its end. Built from the end, the same rules
// give other schedules, often better ones if memory is short and microbatches
// differ. A schedule of the reversed graph, read backwards, is one of the
// graph.
//
// Task t is task n - 1 - t there; edges are turned round, forwards and
// backwards exchange their passes, and a task takes the bytes that it used to
// give back. Epilogues are left out, as they would come before everything: the
// times of the two graphs differ by them.
#ifndef PIPELOOM_PLANNER_CORE_REVERSED_GRAPH_H_
#define PIPELOOM_PLANNER_CORE_REVERSED_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Returns whether every rank gives back all that it took, so that memory is
// empty at both ends, all epilogues are equal, so that the best schedules of
// both graphs are the same, and no pass runs during another.
bool CanReverse(const StageGraph& graph);

// Returns the reversed graph. O(tasks + edges). REQUIRES: CanReverse(graph).
StageGraph InReversedTime(const StageGraph& graph);

// Translates a sequence of all tasks of one of the two graphs to the other.
std::vector<int32_t> ReadBackwards(absl::Span<const int32_t> sequence);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_REVERSED_GRAPH_H_
