#include "studies/job/planner_input.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/placement/recipe.h"
#include "planner/step/plan_step.h"

namespace pipeloom::studies {

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> MakeJobPlanner(
    const JobInput& input, const std::string& strategy,
    std::unique_ptr<const emulator::OpCostModel> operators,
    std::function<absl::Status(emulator::StageCostModel*)> correct,
    std::optional<Partition> partition, std::stop_token stop) {
  planner::JobPlannerOptions options;
  options.strategy = strategy;
  options.operators =
      operators != nullptr ? std::move(operators) : CostsOf(input);
  options.correct = std::move(correct);
  options.partition = std::move(partition);
  options.stop = std::move(stop);
  return planner::JobPlanner::Create(input.job, SampleOf(input.batch),
                                     std::move(options));
}

absl::StatusOr<planner::PreparedJob> PrepareOwnPartition(
    const JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, const std::stop_token& stop) {
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PreparedJob prepared,
      planner::PrepareJob(strategy, costs, SampleOf(input.batch), stop));
  const absl::Status kept =
      partition::CheckPartitionRules(input.job, prepared.partition);
  if (kept.ok()) return prepared;
  return absl::InvalidArgumentError(
      absl::StrCat("strategy ", strategy.name(), ": ", kept.message()));
}

}  // namespace pipeloom::studies
