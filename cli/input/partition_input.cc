#include "cli/input/partition_input.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "formats/job/partition_reader.h"
#include "partition/placement/placement.h"
#include "partition/placement/recipe.h"
#include "studies/job/planner_input.h"

namespace pipeloom::cli {

void AppendPartitionFlags(PartitionFlags* values, std::vector<Flag>* flags) {
  flags->push_back(
      {"partition", &values->source, "SOURCE",
       "which layers are where: `dip` (its rule), `search` (see `pipeloom "
       "partition`) or a file that `pipeloom partition` wrote; default: the "
       "strategy's own"});
}

absl::StatusOr<std::string> ReadPartitionFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) return text;
  return UsageError(absl::StrCat("--partition ", path, ": ",
                                 text.status().message(),
                                 "; it is dip, search or a file"));
}

absl::StatusOr<planner::PartitionSearchResult> RunPartitionSearch(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, int64_t tries,
    const studies::SearchSettings& settings, const Context& context,
    int32_t effort, std::optional<Partition> start) {
  Progress progress(context, "searching partitions", tries * effort);
  planner::PartitionSearchOptions options;
  options.effort = effort;
  options.start = std::move(start);
  options.partitions = static_cast<int32_t>(tries);
  options.seed = settings.seed;
  options.threads = settings.threads;
  options.stop = context.stop;
  options.progress = [&](int32_t tried, Duration best) {
    progress.Set(tried, absl::StrCat("best ", FormatDuration(best)));
  };
  return planner::SearchPartition(strategy, costs,
                                  studies::SampleOf(input.batch), options);
}

absl::StatusOr<planner::PreparedJob> PrepareWithPartition(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const studies::SearchSettings& settings, const Context& context) {
  if (flags.source.empty()) {
    return studies::PrepareOwnPartition(input, strategy, costs, context.stop);
  }
  planner::PreparedJob prepared{.strategy = &strategy, .costs = &costs};
  if (flags.source == "dip") {
    PIPELOOM_ASSIGN_OR_RETURN(
        prepared.partition,
        partition::SeparatedPartition(input.job, costs,
                                      studies::SampleOf(input.batch)));
  } else if (flags.source == "search") {
    PIPELOOM_ASSIGN_OR_RETURN(
        Partition own,
        strategy.MakePartition(costs, studies::SampleOf(input.batch),
                               context.stop));
    PIPELOOM_ASSIGN_OR_RETURN(
        planner::PartitionSearchResult found,
        RunPartitionSearch(input, strategy, costs, flags.tries, settings,
                           context, /*effort=*/1, std::move(own)));
    if (context.stop.stop_requested()) return absl::CancelledError("stopped");
    prepared.partition = std::move(found.partition);
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string text,
                              ReadPartitionFile(flags.source));
    PIPELOOM_ASSIGN_OR_RETURN(
        prepared.partition,
        formats::ParsePartition(text, flags.source, input.job));
  }
  const absl::Status kept =
      partition::CheckPartitionRules(input.job, prepared.partition);
  if (kept.ok()) return prepared;
  return absl::InvalidArgumentError(
      absl::StrCat("--partition ", flags.source, ": ", kept.message()));
}

}  // namespace pipeloom::cli
