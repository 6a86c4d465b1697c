#include "tests/support/plan_first_step.h"

#include <memory>

#include "base/status_macros.h"
#include "partition/batching/batch_split.h"
#include "planner/job/job_planner.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::testing {

absl::StatusOr<planner::PlanResult> PlanFirstStep(
    const JobSpec& job, const BatchMetadata& batch,
    const FirstStepOptions& options) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto made,
      planner::JobPlanner::Create(job, batch, {.strategy = options.schedule}));
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::PackedStep packed,
      partition::PackStep(job, batch, /*first_sample=*/0));
  planner::PlanInput input{.packed = &packed, .robust = options.robust};
  input.budget.max_evaluations = options.evaluations;
  input.budget.threads = options.threads;
  return planner::PlanStep(made->prepared(), input);
}

}  // namespace pipeloom::testing
