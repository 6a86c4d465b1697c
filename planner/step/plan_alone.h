// Planning a step with one strategy alone, without comparing with others.
#ifndef PIPELOOM_PLANNER_STEP_PLAN_ALONE_H_
#define PIPELOOM_PLANNER_STEP_PLAN_ALONE_H_

#include "absl/status/statusor.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// Plans as PlanStep does, but without the plans of rivals.
absl::StatusOr<PlanResult> PlanAlone(const PreparedJob& job,
                                     const PlanInput& input);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_PLAN_ALONE_H_
