// The option --partition: the source of the partition that a strategy plans
// with.
#ifndef PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_
#define PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Searches sample steps with the partition for `time` in all and returns what
// they teach (planner/job/warm_up.h). Shows progress.
absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> WarmUp(
    const planner::PreparedJob& prepared, const studies::JobInput& input,
    Duration time, const studies::SearchSettings& settings,
    const Context& context);

// Returns the lessons kept with the kept partition `prepared` of
// PrepareWithPartition; makes and keeps them if there are none. None if the
// flags ask for another partition.
absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> KeptLessons(
    const planner::PreparedJob& prepared, const studies::JobInput& input,
    const PartitionFlags& flags, const studies::SearchSettings& settings,
    const Context& context);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_
