// Paired passes: weight gradients done in the communication gaps of later
// backwards of their rank (emulator::StageCost::backward_gap), as Megatron's
// own overlap does with a pass's own weight gradients.
//
//     B1 | W1 | B2 | W2        B1 | B2   | W1 rest | B3 ...
//                                   W1 ..   (in the gaps of B2)
//
// A backward takes in the weight gradient that its rank's order has next among
// those whose own backward is done; each weight gradient goes into one
// backward, and each backward takes one, so that a bound of what is hidden is
// known. The rest of the weight gradient stays where it was in the order. A
// backward is no longer for it (OpCostModel::RoomDuring).
//
// Where nothing was deferred past a backward there is nothing to pair: so
// orders with weight gradients put off until after the next backward of their
// rank are tried too, rank by rank, and what keeps the memory limit and
// shortens the step stays.
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

// A weight gradient of which all but `rest` is done in the gaps of `backward`.
struct PairedPass {
  TaskId weight_grad{};
  TaskId backward{};
  Duration rest{};
  bool operator==(const PairedPass&) const = default;
};

struct PairedOrders {
  RankOrders orders{};
  std::vector<PairedPass> pairs{};
  int64_t step_time = 0;  // In ns; kNoLimit: the orders are none of the graph.
  int64_t timings = 0;
};

// Moves weight gradients into the communication gaps of backwards. `graph` has
// the forms and choices of `memory` and `selection`. REQUIRES: `orders` are of
// it and within its limits. The result is never slower. `expired` says that the
// time is over; asked between ranks, empty: no deadline.
// O(ranks x (tasks + edges)).
PairedOrders PairPasses(const StageGraph& graph,
                        const partition::StepMemory& memory,
                        const partition::MemorySelection& selection,
                        const RankOrders& orders,
                        const std::function<bool()>& expired = {});

// The graph with the pairs' times and Task::overlaps. `task_now`: by task of
// the pairs, the graph's; empty: the same.
absl::StatusOr<StageGraph> ApplyPairs(
    const StageGraph& graph, const std::vector<PairedPass>& pairs,
    const IdVector<TaskId, TaskId>& task_now = {});

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PASSES_PAIR_PASSES_H_
