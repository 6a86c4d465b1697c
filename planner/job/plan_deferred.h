// Planning a step twice, with its samples as they are and with surplus deferred
// to later microbatches, and keeping the better plan.
#ifndef PIPELOOM_PLANNER_JOB_PLAN_DEFERRED_H_
#define PIPELOOM_PLANNER_JOB_PLAN_DEFERRED_H_

#include "absl/status/statusor.h"
#include "partition/batching/balance_step.h"
#include "planner/step/plan_step.h"

namespace pipeloom::planner {

// The better of the two plans.
struct DeferredPlan {
  PlanResult plan{};
  bool deferred = false;  // Whether DeferSurplus dealt the samples.
};

// Plans both ways, each with the whole budget, so it takes twice the time if
// deferral changes anything. With equal evaluations and no deadline, the
// emulated finish is never later than that of PlanStep without deferral; on a
// tie the undeferred plan is returned. Returns ResourceExhausted only if
// neither fits.
absl::StatusOr<DeferredPlan> PlanDeferred(const PreparedJob& job,
                                          const PlanInput& input,
                                          const partition::SampleCosts& costs);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_JOB_PLAN_DEFERRED_H_
