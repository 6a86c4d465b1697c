// The check of a plan's predicted times: a part of ValidateExecutionPlan
// (ir/plan/execution_plan.h).
#ifndef PIPELOOM_IR_CHECK_CHECK_TIMES_H_
#define PIPELOOM_IR_CHECK_CHECK_TIMES_H_

#include "absl/status/status.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom {

// Checks that the predicted step time, if there is one, is that of the plan's
// programs with its own times, to the nanosecond, and not below the plan's
// lower bound. Shares no code with the emulator.
//
// Where ranks share network cards or links to the host, and in plans that do
// not say their links, as they were made before, a prediction must be between
// two bounds: without any wait for a channel or a copy, the step takes at least
// that long; and with sends that block, copies as long as the pass whose
// activations they move, and all transfers one after another, at most that
// long.
//
// FailedPrecondition shows the value and what would be right. REQUIRES: the
// programs run to their end, as ValidateExecutionPlan checks.
// O(instructions + edges).
absl::Status CheckPredictedTimes(const ExecutionPlan& plan);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_CHECK_CHECK_TIMES_H_
