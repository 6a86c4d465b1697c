// The search for an order with paired passes (planner/passes/pair_passes.h). A
// pair is made for an order, as the last step; where communication leaves long
// gaps the best order with pairs is another than the best without. So the order
// is searched again with the pairs as they are, as constraints: the paired
// weight gradient lasts for what is left of it and comes after the backward
// that takes it in, which comes after the weight gradient's own.
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

// A graph for the search of orders in which the pairs hold.
struct ConstrainedGraph {
  StageGraph graph{};
  IdVector<TaskId, TaskId> now{};       // By task of the plan's graph.
  IdVector<TaskId, TaskId> original{};  // By task of `graph`.
};

// Returns `graph` with the pairs' times, and their order as edges without
// delay: every schedule of it is one of `graph` in which the pairs hold. Tasks
// are numbered anew, along the edges, the smallest number first. For searches
// only: in a plan a weight gradient does not wait for the backward it overlaps.
// InvalidArgument: the pairs leave no order.
absl::StatusOr<ConstrainedGraph> ConstrainByPairs(
    const StageGraph& graph, const partition::StepMemory& memory,
    const std::vector<PairedPass>& pairs);

// Improves the order of `best`, an answer with pairs for `built` and `memory`,
// with its choices, forms and pairs, until `budget` ends. It stays as it is
// where nothing shorter is found, or where the tensors that ranks hold would
// not fit. Adds to `evaluations`. Deterministic as SearchGraph.
absl::Status SearchPaired(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const partition::StepMemory& memory,
                          const SearchBudget& budget, Candidate* best,
                          int64_t* evaluations);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PAIRED_SEARCH_H_
