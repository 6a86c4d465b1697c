// The plans that other strategies make of a step without a search: classic
// orders and dip's interleaving of the batch as it comes, each with the memory
// choices it has by itself. A strategy that searches compares its own plan with
// the best of them, and hands that out where it has none that is better.
#ifndef PIPELOOM_PLANNER_RIVAL_PLANS_H_
#define PIPELOOM_PLANNER_RIVAL_PLANS_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "ir/microbatches.h"
#include "partition/build_stage_graph.h"
#include "planner/plan_choice.h"

namespace pipeloom::planner {

struct RivalPlan {
  Candidate candidate{};  // Of one recompute choice, no selection.
  partition::BuiltGraph built{};
};

// The fastest on the job's partition, by emulated step time, if it is faster
// than `to_beat` (kZero: any is). Schedules are timed first, and only those
// that could be faster are lowered. Without a plan to beat, all are tried;
// else until the budget's time is over, however many evaluations it has. Adds
// to `evaluations`.
absl::StatusOr<std::optional<RivalPlan>> BestRivalPlan(
    const PreparedJob& job, const PlanInput& input,
    const Microbatches& microbatches, Duration to_beat,
    const SearchBudget& budget, int64_t* evaluations);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_RIVAL_PLANS_H_
