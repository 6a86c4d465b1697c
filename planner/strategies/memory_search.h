// The search for schedule and memory choices together: what the `pipeloom`
// strategy runs every step.
//
// Memory choices and order depend on each other: what is recomputed costs time,
// what is kept delays forwards that find no room. So: several levels of memory
// choice, by module and for all, are each tried with a few list schedules;
// where memory is short, the orders of the two best are searched for a while;
// each such search is gone on with as long as its choices stay, and inherited
// from when they change;
// whether a backward is split or fused is chosen pair by pair for each order
// (pass_forms.h);
// for the better one's order the choices are made anew, exactly
// (choose_memory.h); the order is searched for these choices; and again,
// choices and order, as long as there is time.
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

// `graph`: with everything kept, and the limits to keep; `memory`: its choices.
// The lower bound is for any memory choice within the graph's limits, as
// PlanBound's. The schedule passes
// ValidateSchedule on ApplyMemory(graph, memory, selection) with the answer's
// forms. ResourceExhausted
// when nothing fits with the leanest choices. Deterministic as SearchGraph.
// `start`: an answer to go on from, for the same graph under the same limits or
// higher ones; its memory choices are made anew where they do not fit these.
// `known`: another strategy's answer for the graph, a level among the others.
absl::StatusOr<MemorySchedule> SearchWithMemory(
    const StageGraph& graph, const partition::StepMemory& memory,
    const Partition& partition, uint64_t seed, const SearchBudget& budget,
    const MemorySchedule* start = nullptr,
    const MemorySchedule* known = nullptr);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_MEMORY_SEARCH_H_
