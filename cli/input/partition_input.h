// The option --partition: the source of the partition that a strategy plans
// with.
#ifndef PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_
#define PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/carried_step.h"
#include "planner/layout/partition_search.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::cli {

struct PartitionFlags {
  // "rule" for the strategy's own partition, "dip", "search" or a file; empty
  // for the usual one (cli/input/partition_source.h).
  std::string source{};
  int64_t tries = planner::PartitionSearchOptions().partitions;
};
void AppendPartitionFlags(PartitionFlags* values, std::vector<Flag>* flags);
// Returns the same option for commands that plan many configurations of a job,
// each on the partition of its strategy's rule unless told otherwise.
Flag PartitionOfEachFlag(PartitionFlags* values);

// Reads the file of --partition FILE. A UsageError: it cannot be read.
absl::StatusOr<std::string> ReadPartitionFile(const std::string& path);

// Searches a partition, from `start` if there is one (PartitionSearchOptions),
// with the settings' seed and threads. Ignores their
// deadline, as the search has a fixed effort. Shows progress. After a stop
// request, returns the best partition found so far.
absl::StatusOr<planner::PartitionSearchResult> RunPartitionSearch(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, int64_t tries,
    const studies::SearchSettings& settings, const Context& context,
    int32_t effort = 1, std::optional<Partition> start = {});

// Prepares the job for the strategy, with the partition that the flags ask for.
// The kept one is searched with the costs of the device alone, whatever was
// learned, so that a job has one partition; the search is told and shows
// progress. InvalidArgument: the file is not a partition, or the partition
// breaks a rule of the job. Cancelled: a stop was requested.
absl::StatusOr<planner::PreparedJob> PrepareWithPartition(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const studies::SearchSettings& settings, const Context& context);

// Returns the file of the partition that PrepareWithPartition keeps for the
// job, as it stands there; empty if it is not kept. Reads the file.
std::string KeptPartitionFile(const studies::JobInput& input,
                              const planner::Strategy& strategy,
                              const PartitionFlags& flags);

// The option --warm-up: for how long sample steps are searched before the first
// step (planner/job/warm_up.h); nullopt: as is usual.
Flag WarmUpFlag(std::optional<Duration>* value);

// Returns an error if --warm-up does not go with a search of these settings and
// strategies. `strategies`: names, at least one.
absl::Status CheckWarmUp(const std::optional<Duration>& warm_up,
                         const studies::SearchSettings& settings,
                         absl::Span<const std::string> strategies);

// Returns what sample steps teach, searched with the partition of `prepared`
// for as long as --warm-up says. If it was not given, they are searched for 10
// s with the costs of the device alone, and only for the kept partition of
// PrepareWithPartition, with which they are kept: none for others, and for
// searches without a deadline. Shows progress.
absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> WarmUp(
    const std::optional<Duration>& warm_up,
    const planner::PreparedJob& prepared, const studies::JobInput& input,
    const PartitionFlags& flags, const studies::SearchSettings& settings,
    const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_
