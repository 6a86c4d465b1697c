#include "cli/input/planner_input.h"

#include <utility>

#include "cli/input/learned_file.h"

namespace pipeloom::cli {

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> PlannerOf(
    const JobInput& input, const std::string& strategy,
    const std::string& learned,
    std::unique_ptr<const emulator::OpCostModel> operators) {
  planner::JobPlannerOptions options;
  options.strategy = strategy;
  options.operators =
      operators != nullptr ? std::move(operators) : CostsOf(input);
  options.correct = [&](emulator::StageCostModel* costs) {
    return ApplyLearned(learned, costs);
  };
  return planner::JobPlanner::Create(input.job, SampleOf(input.batch),
                                     std::move(options));
}

}  // namespace pipeloom::cli
