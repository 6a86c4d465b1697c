#include "studies/job/planner_input.h"

#include <utility>

namespace pipeloom::studies {

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> MakeJobPlanner(
    const JobInput& input, const std::string& strategy,
    std::unique_ptr<const emulator::OpCostModel> operators,
    std::function<absl::Status(emulator::StageCostModel*)> correct,
    std::optional<Partition> partition) {
  planner::JobPlannerOptions options;
  options.strategy = strategy;
  options.operators =
      operators != nullptr ? std::move(operators) : CostsOf(input);
  options.correct = std::move(correct);
  options.partition = std::move(partition);
  return planner::JobPlanner::Create(input.job, SampleOf(input.batch),
                                     std::move(options));
}

}  // namespace pipeloom::studies
