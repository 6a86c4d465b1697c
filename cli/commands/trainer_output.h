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
#include "cli/input/partition_input.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/trainer.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"
#include "planner/trainer/trainer_strategy.h"
#include "studies/job/job_input.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {

// Returns the option --for; `help` says what it does.
Flag TrainerFlag(std::string* trainer, absl::string_view help);

// Makes the strategy, or the one that keeps the limits of the trainer. A
// UsageError: another strategy than `pipeloom` was given for a trainer.
absl::StatusOr<std::unique_ptr<planner::Strategy>> MakeStrategyFor(
    absl::string_view trainer, absl::string_view strategy);

// Returns the strategy if it keeps the limits of a trainer, or null.
planner::TrainerStrategy* AsTrainerStrategy(planner::Strategy* strategy);

// Returns where partitions come from: for a trainer (null: for none) from its
// own rules unless `flags` name another source, as a kept partition was
// searched without the trainer's limits.
PartitionFlags PartitionFlagsFor(const planner::TrainerStrategy* trainer,
                                 const PartitionFlags& flags);

// Prepares the job for the trainer: its partition, that of PartitionFlagsFor(),
// and its recomputation, with which all steps fit. Errors of
// PrepareWithPartition and TrainerStrategy::FixRecompute; FailedPrecondition:
// steps or replicas have different numbers of microbatches, which the trainer
// cannot run; UsageError: settings with disturbances.
absl::StatusOr<planner::PreparedJob> PrepareForTrainer(
    const studies::JobInput& input,
    const std::vector<partition::PackedStep>& packed,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const studies::SearchSettings& settings, const Context& context,
    planner::TrainerStrategy* strategy);

// The schedule files of a job's plans, indexed by step and replica.
struct TrainerOutput {
  std::vector<std::vector<adapters::TrainerFile>> schedules{};
  std::vector<std::string> notes{};  // Duties of the trainer, each once.
};
// Makes them. The first one's numbers of microbatches and rows are those of
// all. FailedPrecondition: one trainer cannot run them all. REQUIRES: there is
// a step.
absl::StatusOr<TrainerOutput> TrainerOutputOf(
    const planner::TrainerStrategy& strategy,
    const std::vector<studies::PlannedStep>& steps);

// Returns the launch arguments of the job. They name schedule files from their
// own folder if plans go to `out`, and none if it is empty. Of several plans
// they say which file is whose, and the order of its microbatches where the
// file has no place for it.
absl::StatusOr<std::string> LaunchArgumentsOf(
    const planner::TrainerStrategy& strategy, const planner::PreparedJob& job,
    const TrainerOutput& output, const std::vector<studies::PlannedStep>& steps,
    const std::string& out);
// Returns the extension of a file with them.
absl::string_view LaunchExtension(const TrainerLimits& trainer);

// Writes schedules and launch arguments next to the plans: plan.csv next to
// plan.pb, and plan-launch.txt. Returns the paths.
absl::StatusOr<std::vector<std::string>> WriteTrainerOutput(
    const TrainerOutput& output, const std::string& arguments,
    const TrainerLimits& trainer,
    const std::vector<studies::PlannedStep>& steps, const std::string& out);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_COMMANDS_TRAINER_OUTPUT_H_
