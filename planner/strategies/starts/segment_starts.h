// Starts of a search that chooses memory: orders of segments and some of the
// first choices of a search for an order, each with the best memory choices for
// it.
//
// A segment is the forwards or the backwards of one module in one microbatch;
// these have equal structure and share a priority (DIP, arXiv 2504.14145,
// section 5.1). An order of segments is the priority of a list scheduler that
// takes forwards and backwards in turns. Orders drawn at random differ by up to
// 30 % in step time, and how good an order is shows without choosing memory for
// it: among orders that are scheduled with the same memory choices, the time of
// the sequence when every pair has its fastest candidate ranks them as the best
// choices do (rank correlation 0.93 to 0.99 on steps of dip-vlm-l,
// qwen2.5-vl-72b and dip-t2v-l). That costs a tenth of a memory choice. So:
//
// 1. Each level of memory choices gets the same few orders of segments, and the
//    same few choices of planner/search/first_choices.h: by the time that a
//    task should run, not by its segment alone, which is shorter where many
//    microbatches follow one another. The best order of each level gets memory
//    choices, unless it cannot become the best.
// 2. The orders of the best levels are improved by exchanges and moves of
//    segments, each level on its own.
// 3. The best order of each gets memory choices.
#ifndef PIPELOOM_PLANNER_STRATEGIES_STARTS_SEGMENT_STARTS_H_
#define PIPELOOM_PLANNER_STRATEGIES_STARTS_SEGMENT_STARTS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"
#include "planner/moves/order_search.h"

namespace pipeloom::planner {

// An order of all tasks with memory choices that fit.
struct SegmentStart {
  int64_t time = kNoLimit;  // Step time, ns.
  RankOrders orders{};
  partition::MemorySelection selection{};
  // How `orders` were made with the memory choices of a level: by a first
  // choice, or by an order of segments (SegmentUnits). Neither: they were not.
  std::optional<OrderChoice> first_choice{};
  std::vector<int32_t> units{};
  partition::MemorySelection level{};
  int64_t level_time = kNoLimit;  // With those choices, ns.
  // Returns whether they can be made again within other limits.
  bool has_level() const { return first_choice.has_value() || !units.empty(); }
};

// The starts that were found, and what they cost.
struct SegmentStarts {
  std::vector<SegmentStart> starts{};  // Any number, in no order.
  int64_t evaluations = 0;             // List schedules and memory choices.
};

// Finds starts from levels: memory choices by which list schedules are made;
// those with which a microbatch does not fit are left out. `graph` has
// everything kept and the limits to keep. `times`, indexed by task: when tasks
// ran in a similar step, in any unit, for one of the first orders; empty: no
// similar step. Ends when `budget` does, but not before a level has an order
// that fits, if any has. Equal seeds and evaluations give equal answers for any
// number of threads. CancelledError: the budget was abandoned.
absl::StatusOr<SegmentStarts> FindSegmentStarts(
    const StageGraph& graph, const partition::StepMemory& memory,
    const std::vector<partition::MemorySelection>& levels,
    absl::Span<const double> times, uint64_t seed, const SearchBudget& budget);

// Makes the orders of a start again, with its level of memory choices, within
// the limits of `graph`. Returns no orders if some microbatch alone does not
// fit. Costs one list schedule. REQUIRES: start.has_level().
absl::StatusOr<RankOrders> OrdersWithin(const StageGraph& graph,
                                        const partition::StepMemory& memory,
                                        const SegmentStart& start);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_STARTS_SEGMENT_STARTS_H_
