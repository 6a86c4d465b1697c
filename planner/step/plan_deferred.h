// A step planned with its samples as they are and with surplus deferred to
// later microbatches; the better plan is kept.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_DEFERRED_H_
#define PIPELOOM_PLANNER_STEP_PLAN_DEFERRED_H_

#include "absl/status/statusor.h"
#include "partition/batching/balance_step.h"
#include "planner/step/plan_step.h"

namespace pipeloom::planner {

struct DeferredPlan {
  PlanResult plan{};
  bool deferred = false;  // The samples are dealt by DeferSurplus.
};

// Each with the whole budget, so twice the time where deferral changes
// anything. Never a later emulated finish than PlanStep without it (with equal
// evaluations and no deadline); as it was when both are equal.
// ResourceExhausted only if neither fits.
absl::StatusOr<DeferredPlan> PlanDeferred(const PreparedJob& job,
                                          const PlanInput& input,
                                          const partition::SampleCosts& costs);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_DEFERRED_H_
