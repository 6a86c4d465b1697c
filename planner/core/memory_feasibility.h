// Decides whether any order of the tasks keeps every rank's memory limit: the
// answer comes with an order, or is a proof that there is none.
//
// The bytes that a rank holds depend only on which tasks are done, so the
// search runs over sets of done tasks. If every connected part of the graph
// (usually a microbatch) gives back all it took and never more than it took,
// each part is decided alone: legal parts may run one after another, and a part
// that does not fit alone fits with no other. In a part, tasks that hold no
// more afterwards than before run at once; only the others are branched on, and
// a set from which no end was reached is never entered twice.
//
// The planner's own guard (planner/core/memory_guard.h) tries a few fixed
// orders of a microbatch. On pipelines both agree (a test checks this); where
// parallel parts need workspace while they run, the guard refuses some that are
// legal here.
//
// Cost: a few operations for each task where forwards, backwards and weight
// gradients are chained; exponential at worst, cut off by `max_sets`.
#ifndef PIPELOOM_PLANNER_CORE_MEMORY_FEASIBILITY_H_
#define PIPELOOM_PLANNER_CORE_MEMORY_FEASIBILITY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// The answer to the question.
enum class Feasibility : uint8_t {
  kLegal,       // `sequence` is an order that keeps the limits.
  kImpossible,  // No order does.
  kUnknown,     // `max_sets` was not enough.
};

// A verdict, with an order if it is legal.
struct FeasibilityResult {
  Feasibility verdict = Feasibility::kUnknown;
  // All tasks, producers first; empty unless legal.
  std::vector<int32_t> sequence{};
  int64_t sets = 0;  // Number of sets of done tasks looked at.
};

// Decides the question. Deterministic and thread-safe.
FeasibilityResult DecideFeasibility(const FlatGraph& graph,
                                    int64_t max_sets = 100'000);

// Returns whether it is certain that no order keeps the limits.
inline bool ProveInfeasible(const FlatGraph& graph,
                            int64_t max_sets = 100'000) {
  return DecideFeasibility(graph, max_sets).verdict == Feasibility::kImpossible;
}

// Returns whether some rank could not hold everything that its tasks ever take
// at a time; if not, no order breaks a limit. O(tasks).
bool MemoryIsShort(const FlatGraph& graph);

// Returns whether tasks that run in this order keep every rank's limit.
// O(tasks).
bool FitsMemory(const FlatGraph& graph, absl::Span<const int32_t> sequence);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_MEMORY_FEASIBILITY_H_
