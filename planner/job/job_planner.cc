#include "planner/job/job_planner.h"

#include "base/status_macros.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"

namespace pipeloom::planner {

JobPlanner::JobPlanner(const JobSpec& job, JobPlannerOptions* options)
    : costs_(job, std::move(options->operators)) {}

absl::StatusOr<std::unique_ptr<JobPlanner>> JobPlanner::Create(
    JobSpec job, const BatchMetadata& sample, JobPlannerOptions options) {
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(job));
  const std::string name =
      options.strategy.empty() ? job.search.schedule : options.strategy;
  PIPELOOM_ASSIGN_OR_RETURN(std::unique_ptr<Strategy> strategy,
                            MakeStrategy(name));
  std::unique_ptr<JobPlanner> made(new JobPlanner(job, &options));
  made->strategy_ = std::move(strategy);
  if (options.correct) {
    PIPELOOM_RETURN_IF_ERROR(options.correct(&made->costs_));
  }
  if (options.partition.has_value()) {
    PIPELOOM_RETURN_IF_ERROR(ValidatePartition(*options.partition, job.model));
    made->prepared_ = {.strategy = made->strategy_.get(),
                       .costs = &made->costs_,
                       .partition = *std::move(options.partition)};
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(
        made->prepared_,
        PrepareJob(*made->strategy_, made->costs_, sample, options.stop));
  }
  return made;
}

absl::StatusOr<PlanResult> JobPlanner::PlanStep(
    const BatchMetadata& batch, const StepRequest& request) const {
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::PackedStep packed,
      partition::PackStep(job(), batch, request.first_sample));
  return planner::PlanStep(prepared_, {.packed = &packed,
                                       .step = request.step,
                                       .replica = request.replica,
                                       .seed = request.seed,
                                       .budget = request.budget,
                                       .carried = request.carried});
}

}  // namespace pipeloom::planner
