// The option --for: the trainer whose limits a plan keeps, and the files that
// it needs.
#ifndef PIPELOOM_CLI_COMMANDS_TRAINER_OUTPUT_H_
#define PIPELOOM_CLI_COMMANDS_TRAINER_OUTPUT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "adapters/trainer_files.h"
#include "cli/console/command.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"
#include "planner/trainer/trainer_strategy.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {

// Returns the option --for.
Flag TrainerFlag(std::string* trainer);

// Makes the strategy, or the one that keeps the limits of the trainer. A
// UsageError: another strategy than `pipeloom` was given for a trainer.
absl::StatusOr<std::unique_ptr<planner::Strategy>> MakeStrategyFor(
    absl::string_view trainer, absl::string_view strategy);

// Returns the strategy if it keeps the limits of a trainer, or null.
planner::TrainerStrategy* AsTrainerStrategy(planner::Strategy* strategy);

// The files and the launch arguments of a job's plans. Schedules are indexed by
// step and replica.
struct TrainerOutput {
  std::vector<std::vector<adapters::TrainerFile>> schedules{};
  std::string arguments{};
  std::vector<std::string> notes{};  // Duties of the trainer, each once.
};
// Makes them. `out`: where plans go, or empty.
absl::StatusOr<TrainerOutput> TrainerOutputOf(
    const planner::TrainerStrategy& strategy, const planner::PreparedJob& job,
    const std::vector<studies::PlannedStep>& steps, const std::string& out);

// Writes them next to the plans: plan.csv next to plan.pb, and
// plan-launch.txt. Returns the paths.
absl::StatusOr<std::vector<std::string>> WriteTrainerOutput(
    const TrainerOutput& output, const planner::TrainerStrategy& strategy,
    const std::vector<studies::PlannedStep>& steps, const std::string& out);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_COMMANDS_TRAINER_OUTPUT_H_
