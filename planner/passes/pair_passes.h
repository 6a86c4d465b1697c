// Paired passes: weight gradients done in the communication gaps of later
// backwards of their rank (emulator::StageCost::backward_gap), as Megatron's
// own overlap does with a pass's own weight gradients.
//
//     B1 | W1 | B2 | W2        B1 | B2   | W1 rest | B3 ...
//                                   W1 ..   (in the gaps of B2)
//
// A backward hides the weight gradient that comes next in its rank's order
// among those whose own backward is done. Each weight gradient is hidden in one
// backward and each backward hides one, so that the hidden time can be bounded.
// The rest of the weight gradient stays at its place in the order. The backward
// does not get longer by it (OpCostModel::RoomDuring).
//
// If no weight gradient is deferred past a backward, there is nothing to pair.
// So orders in which weight gradients are put off until after the next backward
// of their rank are tried too, rank by rank, and kept if they keep the memory
// limit and shorten the step.
#ifndef PIPELOOM_PLANNER_PASSES_PAIR_PASSES_H_
#define PIPELOOM_PLANNER_PASSES_PAIR_PASSES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

// A weight gradient that runs in the gaps of `backward`, except for its `rest`.
struct PairedPass {
  TaskId weight_grad{};
  TaskId backward{};
  Duration rest{};
  bool operator==(const PairedPass&) const = default;
};

// A forward and a backward of two microbatches of a rank that run together
// (pair_forwards.h).
struct ForwardPair {
  TaskId first{};   // The one with the larger id.
  TaskId second{};  // Directly after it in its rank's order.
  Duration together{};
  bool operator==(const ForwardPair&) const = default;
};

// Orders with their pairs.
struct PairedOrders {
  RankOrders orders{};
  std::vector<PairedPass> pairs{};
  int64_t step_time = 0;  // In ns; kNoLimit if the orders do not fit the graph.
  int64_t timings = 0;    // Number of orders that were timed.
};

// Pairs weight gradients with backwards, and puts some off if that helps.
// `graph` has the forms and choices of `memory` and `selection`. The result is
// never slower than `orders`. `expired` says that the time is over; it is asked
// between ranks, empty: no deadline. O(ranks x (tasks + edges)). REQUIRES:
// `orders` are of `graph` and within its limits.
PairedOrders PairPasses(const StageGraph& graph,
                        const partition::StepMemory& memory,
                        const partition::MemorySelection& selection,
                        const RankOrders& orders,
                        const std::function<bool()>& expired = {});

// Returns the orders with each weight gradient that directly follows its
// backward put off until after the next backward of its rank that has a gap, or
// for as long as the rank's limit allows. `graph`, `memory` and `selection` as
// above.
RankOrders PutOffWeightGrads(const StageGraph& graph,
                             const partition::StepMemory& memory,
                             const partition::MemorySelection& selection,
                             const RankOrders& orders);

// Returns the graph with the pairs' durations and Task::overlaps. `task_now`
// maps tasks of the pairs to tasks of `graph`; if empty, they are the same.
absl::StatusOr<StageGraph> ApplyPairs(
    const StageGraph& graph, const std::vector<PairedPass>& pairs,
    const IdVector<TaskId, TaskId>& task_now = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PASSES_PAIR_PASSES_H_
