// The plans that other strategies make of a step with little or no search:
// classic orders, DIP's interleaving of the batch as it comes and its first
// rollouts, each with the memory settings it would try by itself. A strategy
// that starts from others (planner/strategy_abilities.h) hands out the fastest
// of them where its own plan is slower, so no such row of a table is faster
// than its own row.
#ifndef PIPELOOM_PLANNER_STEP_RIVAL_PLANS_H_
#define PIPELOOM_PLANNER_STEP_RIVAL_PLANS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/step/step_types.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Returns `own`, what the job's strategy made of the step, or the fastest of
// the rivals' plans on the same partition if that is faster, under
// the name of the job's strategy, with the bound of `own`. If `own` is
// ResourceExhausted, every rival gets a try, whatever the budget; else none is
// begun when more than 60 % of the time is used, but the number of evaluations
// does not count, as a plan takes few.
// Evaluations are added up. Errors: those of `own`.
absl::StatusOr<PlanResult> BestOfRivals(
    const std::vector<std::unique_ptr<Strategy>>& rivals,
    const PreparedJob& job, const PlanInput& input,
    absl::StatusOr<PlanResult> own);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_RIVAL_PLANS_H_
