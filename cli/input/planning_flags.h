// The options of every command that plans a job: the job and its batch, the
// strategy, the partition and the search.
#ifndef PIPELOOM_CLI_INPUT_PLANNING_FLAGS_H_
#define PIPELOOM_CLI_INPUT_PLANNING_FLAGS_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "cli/input/partition_input.h"
#include "emulator/calibration/cost_learner.h"
#include "planner/job/job_planner.h"
#include "studies/whatif/whatif_run.h"

namespace pipeloom::cli {

struct PlanningFlags {
  JobFlags job{};
  std::optional<std::string> strategy{};  // Absent: the job's.
  PartitionFlags partition{};
  studies::SearchOptions search{};
};
void AppendPlanningFlags(PlanningFlags* values, bool with_steps,
                         std::vector<Flag>* flags);

// Returns the option --strategy, also known as --schedule.
Flag StrategyFlag(FlagTarget target, const char* help);
// Returns the option --strategies, also known as --schedules.
Flag StrategiesFlag(std::vector<std::string>* values, const char* help);

// Returns the options of the strategy, the partition, the search, the samples
// and the costs that are given, as arguments of a command, such as
// "--strategy 1f1b --seed 7"; empty if there are none. Leaves out the batch,
// --replicas and the changes that ChangesOf() returns.
std::string PlanningArguments(const PlanningFlags& flags);

// Returns the options that are given and mean nothing for a plan, such as
// "--set, --partition"; empty if there are none. `used`: those that mean
// something for a plan in this command, such as "seed".
std::string PlanningFlagsGiven(const PlanningFlags& flags,
                               absl::Span<const absl::string_view> used = {});

// Reads the job and its batch, in the layout of --partition FILE if it has one.
absl::StatusOr<studies::JobInput> ReadPlannedJob(const std::string& job,
                                                 const PlanningFlags& flags,
                                                 const Context& context);

// Makes the planner of the job with the strategy and the partition of the
// flags. `learned`: a file of measured times, or empty; its factors are clamped
// to [1 / most, most], with a note.
absl::StatusOr<std::unique_ptr<planner::JobPlanner>> MakePlanner(
    const studies::JobInput& input, const PlanningFlags& flags,
    const std::string& learned, const Context& context,
    double most = emulator::CostLearner::kMaxCorrection);

// The partition of an earlier search, or of one that was made and kept.
struct UsualPartition {
  Partition partition{};
  std::string file{};  // For --partition FILE; empty if it could not be kept.
};
// Returns the partition that `plan` searches and keeps for the job; nullopt if
// the options, PIPELOOM_PARTITION or the strategy name another source. Searches
// if it is not kept, which takes seconds to minutes. `input` is as it was read:
// the file of --partition has no part in it. Cancelled: a stop was requested.
absl::StatusOr<std::optional<UsualPartition>> UsualPartitionOf(
    const studies::JobInput& input, const PlanningFlags& flags,
    const Context& context);

// Returns the search's effective settings, and whether it defers surplus.
studies::SearchSettings SettingsOf(const PlanningFlags& flags,
                                   const studies::JobInput& input);

// The input of the commands that try changes of a job.
struct WhatIfBase {
  studies::WhatIfInput input{};
  // The changes of the options and of the layout of --partition FILE, which
  // every configuration has.
  std::vector<formats::JobOverride> changes{};
};
// Reads the job and its batch. REQUIRES: `flags` and `context` outlive the
// result.
absl::StatusOr<WhatIfBase> ReadWhatIfBase(const std::string& job,
                                          const PlanningFlags& flags,
                                          const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PLANNING_FLAGS_H_
