// The search for schedule and memory choices together: the work of the
// `pipeloom` strategy in every step.
//
// Memory choices and order depend on each other: recomputation costs time, and
// activations that are kept delay forwards that find no room. So:
//
// - Several levels of memory choice, for each module and for all, are tried
//   with a few list schedules each.
// - If memory is short, the orders of the two best levels are searched for a
//   while. Each such search is continued as long as its choices stay, and its
//   successor inherits from it when they change.
// - The better level's order is searched further. For that order, each stage
//   pair gets a split or fused backward (pass_forms.h), and the memory choices
//   are made anew, exactly (choose_memory.h).
// - The order is searched again for these choices. Calls that go on from an
//   earlier answer (`start`) repeat this as long as there is time.
#ifndef PIPELOOM_PLANNER_STRATEGIES_MEMORY_SEARCH_H_
#define PIPELOOM_PLANNER_STRATEGIES_MEMORY_SEARCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/search_budget.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Searches for a schedule and its memory choices. `graph` has everything kept,
// and the limits to keep; `memory` has its choices. `start` is an answer to go
// on from, for the same graph under the same limits or higher ones; its memory
// choices are made anew if they do not fit these. `known` is another strategy's
// answer for the graph, tried as one more level.
//
// The schedule passes ValidateSchedule on ApplyMemory(graph, memory, selection)
// with the answer's forms. The lower bound is for any memory choice within the
// graph's limits, as PlanBound's. Returns ResourceExhausted if nothing fits
// with the choices of least memory. As deterministic as SearchGraph.
absl::StatusOr<MemorySchedule> SearchWithMemory(
    const StageGraph& graph, const partition::StepMemory& memory,
    const Partition& partition, uint64_t seed, const SearchBudget& budget,
    const MemorySchedule* start = nullptr,
    const MemorySchedule* known = nullptr);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_MEMORY_SEARCH_H_
