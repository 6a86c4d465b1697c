// --partition: where the partition that a strategy plans with comes from.
#ifndef PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_
#define PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/console/command.h"
#include "cli/input/job_input.h"
#include "emulator/stage/stage_cost.h"
#include "planner/layout/partition_search.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::cli {

struct PartitionFlags {
  std::string source{};  // "": the strategy's own; dip, search or a file.
  int64_t tries = planner::PartitionSearchOptions().partitions;
};
void AppendPartitionFlags(PartitionFlags* values, std::vector<Flag>* flags);

// Searches with the settings' seed and threads; a deadline is none of the
// search's, which has a fixed effort. Shows progress. After a stop request the
// best until then.
absl::StatusOr<planner::PartitionSearchResult> RunPartitionSearch(
    const JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, int64_t tries,
    const SearchSettings& settings, const Context& context, int32_t effort = 1);

// The strategy with its partition by the flags. InvalidArgument: the file is
// none, or the partition breaks a rule of the job.
absl::StatusOr<planner::PreparedJob> PrepareWithPartition(
    const JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const SearchSettings& settings, const Context& context);

// Whether the strategy plans with any partition as well as with its own.
bool TakesAnyPartition(absl::string_view strategy);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PARTITION_INPUT_H_
