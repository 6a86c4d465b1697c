// A strategy's own plan of a step, whatever others would do.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_ALONE_H_
#define PIPELOOM_PLANNER_STEP_PLAN_ALONE_H_

#include "absl/status/statusor.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// As PlanStep, without the plans of rivals.
absl::StatusOr<PlanResult> PlanAlone(const PreparedJob& job,
                                     const PlanInput& input);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_ALONE_H_
