// The search for an order with paired passes (planner/passes/pair_passes.h).
// Pairs are made for a given order, as the last step; but where communication
// leaves long gaps, the best order with pairs differs from the best one
// without. So the order is searched again with the pairs as constraints: a
// paired weight gradient lasts only for the rest of it that the pairing leaves,
// and runs after the backward that hides it, which in turn runs after the
// weight gradient's own backward. A forward and a backward that run together
// are one task, and so are a backward and the weight gradients that are done
// with it: those of which the pairing leaves no rest, and its own if it is
// fused.
#ifndef PIPELOOM_PLANNER_STEP_PAIRED_SEARCH_H_
#define PIPELOOM_PLANNER_STEP_PAIRED_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/passes/pair_passes.h"
#include "planner/step/plan_choice.h"

namespace pipeloom::planner {

// A graph for searching orders in which the pairs hold.
struct ConstrainedGraph {
  StageGraph graph{};
  // Indexed by task of the plan's graph. Passes that run together have one.
  IdVector<TaskId, TaskId> now{};
  // Indexed by task of `graph`: the tasks that it stands for, in their order.
  IdVector<TaskId, std::vector<TaskId>> members{};
};

// Returns `graph` with the durations of the pairs and with their order as edges
// without delay: every schedule of the result is a schedule of `graph` in which
// the pairs hold. Tasks are renumbered along the edges; among tasks that are
// ready the smallest number goes first. For searches only: in a plan a weight
// gradient does not wait for the backward it overlaps. Returns InvalidArgument
// if the pairs allow no order.
absl::StatusOr<ConstrainedGraph> ConstrainByPairs(
    const StageGraph& graph, const partition::StepMemory& memory,
    const std::vector<PairedPass>& pairs,
    const std::vector<ForwardPair>& forward_pairs = {});

// Returns orders of the plan's graph, in which the pairs hold, as orders of the
// constrained graph.
RankOrders ToConstrained(RankOrders orders,
                         const ConstrainedGraph& constrained);
// Does the opposite.
RankOrders FromConstrained(const RankOrders& orders,
                           const ConstrainedGraph& constrained);

// Improves the order of `best`, an answer with pairs for `built` and `memory`,
// until `budget` ends; its memory choices, forms and pairs stay. `best` stays
// as it is if nothing shorter is found or if the tensors that ranks hold would
// not fit. Adds to `evaluations`. As deterministic as SearchGraph.
absl::Status SearchPaired(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const partition::StepMemory& memory,
                          const SearchBudget& budget, Candidate* best,
                          int64_t* evaluations);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PAIRED_SEARCH_H_
