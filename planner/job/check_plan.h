// The check of a plan against the job and the batch that it is for.
#ifndef PIPELOOM_PLANNER_JOB_CHECK_PLAN_H_
#define PIPELOOM_PLANNER_JOB_CHECK_PLAN_H_

#include "absl/status/status.h"
#include "ir/plan/execution_plan.h"
#include "partition/batching/batch_split.h"
#include "planner/step/step_types.h"

namespace pipeloom::planner {

// Checks what ValidateExecutionPlan cannot prove from a plan alone: that it is
// one of this job's step, on this partition, with these samples.
// - It has the job's ranks, memory limits, static memory and epilogues.
// - It has the passes of every sub-microbatch that the samples are split into,
//   and no others; a frozen module has no backward of its own. If the strategy
//   is one of a trainer (planner/trainer/trainer_strategy.h): those of the
//   trainer's stages.
// - A forward takes the time that the job's costs give it; so do, within 0.1 %
//   and 1 us, backwards that recompute nothing and weight gradients that run
//   alone. With recomputation a backward takes at most a forward more. A
//   backward hides at most one weight gradient.
// - Transfers have the job's sizes and times.
// - The shares of the loss are those of the samples.
// - The predicted time is the emulated one, on the job's network, to the
//   nanosecond.
// FailedPrecondition names the first difference, with what the job says, and
// the partition where its stages or layers are the difference.
// InvalidArgument: the samples cannot be split on this partition. REQUIRES: the
// plan passes ValidateExecutionPlan. Costs as much as building the step's graph
// twice and emulating the plan.
absl::Status CheckPlan(const PreparedJob& prepared,
                       const partition::PackedStep& packed,
                       const ExecutionPlan& plan);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_JOB_CHECK_PLAN_H_
