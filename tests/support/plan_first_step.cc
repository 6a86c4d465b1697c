#include "tests/support/plan_first_step.h"

#include <memory>

#include "base/status_macros.h"
#include "partition/batching/batch_split.h"
#include "partition/placement/placement.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::testing {

absl::StatusOr<planner::PreparedJob> PrepareByRule(
    const planner::Strategy& strategy, const emulator::StageCostModel& costs,
    const BatchMetadata& sample) {
  if (strategy.name() != "pipeloom") {
    return planner::PrepareJob(strategy, costs, sample);
  }
  planner::PreparedJob prepared{.strategy = &strategy, .costs = &costs};
  PIPELOOM_ASSIGN_OR_RETURN(
      prepared.partition,
      partition::SeparatedPartition(costs.job(), costs, sample));
  return prepared;
}

absl::StatusOr<planner::PlanResult> PlanFirstStep(
    const JobSpec& job, const BatchMetadata& batch,
    const FirstStepOptions& options) {
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(job));
  const emulator::StageCostModel costs(job);
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy,
                            planner::MakeStrategy(options.schedule));
  PIPELOOM_ASSIGN_OR_RETURN(const planner::PreparedJob prepared,
                            PrepareByRule(*strategy, costs, batch));
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::PackedStep packed,
      partition::PackStep(job, batch, /*first_sample=*/0));
  planner::PlanInput input{.packed = &packed, .robust = options.robust};
  input.budget.max_evaluations = options.evaluations;
  input.budget.threads = options.threads;
  return planner::PlanStep(prepared, input);
}

}  // namespace pipeloom::testing
