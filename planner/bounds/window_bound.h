// The largest step time that time windows refute.
//
// Assume that a schedule of step time T exists. Each task then has a window: it
// starts no earlier than its head and ends no later than T less its tail.
// Windows shrink by conditions that every such schedule must obey, until one is
// empty (T is refuted, and so is every smaller step time) or nothing changes:
// - Dependencies with their delays.
// - A rank runs one task at a time: edge finding in both directions (if a set
//   of tasks with one more cannot all end by the set's last deadline, that one
//   comes after all of them; Carlier, Pinson 1989; in the O(n^2) form of
//   Baptiste, Le Pape, Nuijten 2001), and refutation if the tasks that must run
//   within a span do not fit into it.
// - Memory, and tasks that come one after another: the bounds of
//   planner/bounds/memory_bound.h and planner/bounds/ramp_bound.h with the
//   shrunken windows.
// Bisection finds the largest T refuted; T + 1 is a bound. Windows shrink
// monotonically in T, but every single refutation is a proof of its own.
//
// Cost: O(tasks of a rank squared) for each rank and pass over the ranks, with
// a few to tens of passes for each T, and about 20 T. Deterministic without a
// deadline.
#ifndef PIPELOOM_PLANNER_BOUNDS_WINDOW_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_WINDOW_BOUND_H_

#include <cstdint>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

// Returns the bound in ns, at least `known`, a lower bound of the step time.
// `head` and `tail`, indexed by task, are lower bounds of the time before its
// start and after its end. An evaluation of the budget is one assumed step
// time.
int64_t WindowBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                    absl::Span<const int64_t> tail, int64_t known,
                    const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_WINDOW_BOUND_H_
