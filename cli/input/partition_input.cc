#include "cli/input/partition_input.h"

#include <chrono>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/fingerprint.h"
#include "base/status_macros.h"
#include "cli/console/build_id.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "cli/console/study_context.h"
#include "cli/input/partition_source.h"
#include "cli/report/kept_partitions.h"
#include "cli/report/layout_report.h"
#include "formats/job/partition_reader.h"
#include "partition/placement/placement.h"
#include "partition/placement/recipe.h"
#include "planner/job/warm_up.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "studies/job/planner_input.h"
#include "studies/layouts/layout_study.h"

namespace pipeloom::cli {
namespace {

constexpr char kSources[] =
    "which layers are where: `rule` (the strategy's own), `dip` (DIP's "
    "rule), "
    "`search` (see `pipeloom partition`) or a file that `pipeloom partition` "
    "wrote";

// Layouts that are looked at for a hint, and the gain from which there is one:
// the times of a first look are 5 % uncertain.
constexpr int32_t kHintLayouts = 12;
constexpr double kHintGain = 0.1;
// Jobs with more microbatches a step, of all replicas, get no hint: layouts
// with fewer replicas would take minutes.
constexpr int32_t kHintMicrobatches = 128;

// REQUIRES: `context` and `progress` outlive the result.
planner::PartitionSearchOptions OptionsOf(
    int64_t tries, const studies::SearchSettings& settings,
    const Context& context, Progress* progress) {
  planner::PartitionSearchOptions options;
  options.partitions = static_cast<int32_t>(tries);
  options.seed = settings.seed;
  options.threads = settings.threads;
  options.stop = context.stop;
  options.progress = [progress](int32_t tried, Duration best) {
    progress->Set(tried, absl::StrCat("best ", FormatDuration(best)));
  };
  return options;
}

// Returns a fingerprint of all that the default search of a partition depends
// on.
Fingerprint KeyOf(const studies::JobInput& input,
                  const planner::Strategy& strategy, int64_t tries) {
  JobSpec job = input.job;
  job.search = {.seed = job.search.seed};  // The rest is for searches of steps.
  FingerprintBuilder key;
  key.Add(OwnBuild()).Add(strategy.name()).Add(tries);
  // The messages have no maps, so equal ones have equal bytes.
  key.Add(convert::ToProto(job).SerializeAsString());
  key.Add(convert::ToProto(studies::SampleOf(input.batch)).SerializeAsString());
  key.Add(input.profile != nullptr).Add(input.more_profiles.size());
  for (const auto& given : input.profiles.given()) key.Add(given.content);
  return key.Build();
}

// How long sample steps of a job with a kept partition are searched.
constexpr Duration kWarmUp = std::chrono::seconds(10);

// Returns whether the partition is the kept one.
bool UsesKept(const std::string& given, absl::string_view strategy) {
  const absl::StatusOr<std::string> source = SourceOf(given, strategy);
  return source.ok() && *source == "kept";
}

// Notes a layout that a first look finds much faster than the job's own.
void HintAtLayout(const studies::JobInput& input,
                  const planner::Strategy& strategy,
                  const planner::PartitionSearchOptions& search,
                  const Context& context) {
  const JobSpec& job = input.job;
  if (int64_t{job.parallel.dp} * job.training.microbatches >
      kHintMicrobatches) {
    return;
  }
  planner::LayoutSearchOptions options;
  options.most_screened = kHintLayouts;
  options.finalists = 0;
  options.search = search;
  const absl::StatusOr<planner::LayoutSearchResult> found =
      studies::SearchLayouts(input, strategy, options, StudyContextOf(context));
  if (!found.ok() || found->own_time == kZero ||
      ToSeconds(found->found.step_time) >
          (1 - kHintGain) * ToSeconds(found->own_time)) {
    return;
  }
  context.warn(absl::StrFormat(
      "note: at a first look %s with %d microbatches takes %s a step instead "
      "of %s; `pipeloom partition %s --layouts` searches layouts",
      LayoutWords(found->job.parallel, found->job.module_parallelism),
      found->job.training.microbatches, FormatDuration(found->found.step_time),
      FormatDuration(found->own_time), input.arguments));
}

// Returns the partition of an earlier search, else searches and keeps it.
absl::StatusOr<Partition> KeptOrSearched(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const PartitionFlags& flags, const studies::SearchSettings& settings,
    const Context& context) {
  const KeptPartitions kept = KeptPartitions::OfUser();
  const Fingerprint key = KeyOf(input, strategy, flags.tries);
  if (auto found = kept.Find(key, input.job)) return *std::move(found);
  const emulator::StageCostModel costs(input.job, studies::CostsOf(input));
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PreparedJob own,
      studies::PrepareOwnPartition(input, strategy, costs, context.stop));
  context.warn(
      "note: the partition of this job is searched, once; --partition rule "
      "plans without");
  Progress progress(context, "searching partitions", flags.tries);
  planner::PartitionSearchOptions options =
      OptionsOf(flags.tries, settings, context, &progress);
  options.seed = input.job.search.seed;
  const planner::PartitionSearchOptions hint = options;
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PartitionSearchResult found,
      planner::ImprovePartition(strategy, costs, studies::SampleOf(input.batch),
                                std::move(own.partition), std::move(options)));
  if (context.stop.stop_requested()) return absl::CancelledError("stopped");
  if (found.tried == 0) return std::move(found.partition);
  const std::string comment = absl::StrFormat(
      "%s; %d partitions tried on samples of %s: emulated step time %s, by the "
      "rule %s",
      found.recipe, found.tried, input.batch_name,
      FormatDuration(found.step_time), FormatDuration(found.rule_time));
  const absl::Status written =
      kept.Keep(key, input.job, found.partition, comment);
  if (!written.ok()) {
    context.warn(
        absl::StrCat("note: the partition is not kept: ", written.message()));
  } else if (const std::string path = kept.PathOf(key); !path.empty()) {
    context.warn(absl::StrCat("note: ", comment, "; kept in ", path));
  } else {
    context.warn(
        "note: the partition is not kept, and the next command searches it "
        "again: set PIPELOOM_CACHE_DIR (HOME is not set)");
  }
  HintAtLayout(input, strategy, hint, context);
  if (context.stop.stop_requested()) return absl::CancelledError("stopped");
  return std::move(found.partition);
}

using Lessons = std::vector<std::shared_ptr<const CarriedStep>>;

// Searches sample steps for `time` in all.
absl::StatusOr<Lessons> SearchSampleSteps(
    const planner::PreparedJob& prepared, const studies::JobInput& input,
    Duration time, const studies::SearchSettings& settings,
    const Context& context) {
  const Progress progress(context, "warming up", 1);
  studies::SearchSettings longer = settings;
  longer.evaluations.reset();
  longer.deadline = time;
  planner::SearchBudget budget = studies::StartBudget(longer, context.stop);
  budget.needs_answer = false;
  return planner::WarmUp(prepared, input.batch, settings.seed, budget);
}

// Returns the lessons kept with the kept partition `prepared`; makes and keeps
// them if there are none.
absl::StatusOr<Lessons> KeptLessons(const planner::PreparedJob& prepared,
                                    const studies::JobInput& input,
                                    const PartitionFlags& flags,
                                    const studies::SearchSettings& settings,
                                    const Context& context) {
  Lessons lessons;
  const KeptPartitions kept = KeptPartitions::OfUser();
  const Fingerprint key = KeyOf(input, *prepared.strategy, flags.tries);
  if (auto found = kept.FindLessons(key, prepared.partition)) {
    return *std::move(found);
  }
  context.warn(absl::StrFormat(
      "note: sample steps of this job are searched for %s, once; --warm-up 0s "
      "plans without",
      FormatDuration(kWarmUp)));
  // With the costs of the device alone, as the partition.
  const emulator::StageCostModel costs(input.job, studies::CostsOf(input));
  planner::PreparedJob alone = prepared;
  alone.costs = &costs;
  auto made = SearchSampleSteps(alone, input, kWarmUp, settings, context);
  if (absl::IsCancelled(made.status())) return made.status();
  if (!made.ok()) {
    context.warn(absl::StrCat("note: steps are planned without lessons: ",
                              made.status().message()));
    return lessons;
  }
  lessons = *std::move(made);
  const absl::Status written =
      kept.KeepLessons(key, prepared.partition, lessons);
  if (!written.ok()) {
    context.warn(
        absl::StrCat("note: their plans are not kept: ", written.message()));
  }
  return lessons;
}

}  // namespace

void AppendPartitionFlags(PartitionFlags* values, std::vector<Flag>* flags) {
  flags->push_back(
      {"partition", &values->source, "SOURCE",
       absl::StrCat(
           kSources,
           ". Default: that of PIPELOOM_PARTITION, else for the "
           "strategy pipeloom a search, once for each job and sample (seconds "
           "to minutes), kept in PIPELOOM_CACHE_DIR or ~/.cache/pipeloom; for "
           "others their rule")});
}

Flag PartitionOfEachFlag(PartitionFlags* values) {
  return {"partition", &values->source, "SOURCE",
          absl::StrCat(kSources,
                       ". Default: `rule`, whatever PIPELOOM_PARTITION says, "
                       "as a search for each configuration takes long")};
}

std::string KeptPartitionFile(const studies::JobInput& input,
                              const planner::Strategy& strategy,
                              const PartitionFlags& flags) {
  const KeptPartitions kept = KeptPartitions::OfUser();
  const Fingerprint key = KeyOf(input, strategy, flags.tries);
  return kept.Find(key, input.job) ? kept.PathOf(key) : std::string();
}

absl::StatusOr<std::string> ReadPartitionFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok()) return text;
  return UsageError(absl::StrCat("--partition ", path, ": ",
                                 text.status().message(),
                                 "; it is rule, dip, search or a file"));
}

absl::StatusOr<planner::PartitionSearchResult> RunPartitionSearch(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, int64_t tries,
    const studies::SearchSettings& settings, const Context& context,
    int32_t effort, std::optional<Partition> start) {
  Progress progress(context, "searching partitions", tries * effort);
  planner::PartitionSearchOptions options =
      OptionsOf(tries, settings, context, &progress);
  options.effort = effort;
  options.start = std::move(start);
  return planner::SearchPartition(strategy, costs,
                                  studies::SampleOf(input.batch), options);
}

absl::StatusOr<planner::PreparedJob> PrepareWithPartition(
    const studies::JobInput& input, const planner::Strategy& strategy,
    const emulator::StageCostModel& costs, const PartitionFlags& flags,
    const studies::SearchSettings& settings, const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string source,
                            SourceOf(flags.source, strategy.name()));
  if (source == "rule") {
    return studies::PrepareOwnPartition(input, strategy, costs, context.stop);
  }
  planner::PreparedJob prepared{.strategy = &strategy, .costs = &costs};
  if (source == "kept") {
    PIPELOOM_ASSIGN_OR_RETURN(
        prepared.partition,
        KeptOrSearched(input, strategy, flags, settings, context));
    return prepared;
  }
  if (source == "dip") {
    PIPELOOM_ASSIGN_OR_RETURN(
        prepared.partition,
        partition::SeparatedPartition(input.job, costs,
                                      studies::SampleOf(input.batch)));
  } else if (source == "search") {
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
                              ReadPartitionFile(source));
    PIPELOOM_ASSIGN_OR_RETURN(prepared.partition,
                              formats::ParsePartition(text, source, input.job));
  }
  const absl::Status kept =
      partition::CheckPartitionRules(input.job, prepared.partition);
  if (kept.ok()) return prepared;
  return absl::InvalidArgumentError(
      absl::StrCat("--partition ", source, ": ", kept.message()));
}

Flag WarmUpFlag(std::optional<Duration>* value) {
  return {
      "warm-up", value, "TIME",
      "search sample steps of the batch for so long in all before the "
      "first step; pipeloom's searches of all steps go on from their plans. "
      "Default: 10s, once for each job and sample whose partition is "
      "searched, kept with it; else 0s"};
}

absl::Status CheckWarmUp(const std::optional<Duration>& warm_up,
                         const studies::SearchSettings& settings,
                         absl::Span<const std::string> strategies) {
  if (!warm_up.has_value()) return absl::OkStatus();
  if (!settings.deadline.has_value()) {
    return UsageError(
        "--warm-up without a deadline: searches by evaluations do not go on "
        "from other plans; add --deadline");
  }
  if (!absl::c_linear_search(strategies, "pipeloom")) {
    return UsageError(absl::StrCat("--warm-up with the strateg",
                                   strategies.size() == 1 ? "y " : "ies ",
                                   absl::StrJoin(strategies, ", "),
                                   ": only pipeloom goes on from other plans"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Lessons> WarmUp(const std::optional<Duration>& warm_up,
                               const planner::PreparedJob& prepared,
                               const studies::JobInput& input,
                               const PartitionFlags& flags,
                               const studies::SearchSettings& settings,
                               const Context& context) {
  if (warm_up.has_value()) {
    if (*warm_up <= kZero) return Lessons();
    return SearchSampleSteps(prepared, input, *warm_up, settings, context);
  }
  if (!settings.deadline.has_value() ||
      !UsesKept(flags.source, prepared.strategy->name())) {
    return Lessons();
  }
  return KeptLessons(prepared, input, flags, settings, context);
}

}  // namespace pipeloom::cli
