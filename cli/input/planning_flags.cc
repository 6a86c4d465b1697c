#include "cli/input/planning_flags.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/input/layout_flags.h"
#include "cli/input/learned_file.h"
#include "cli/input/partition_source.h"
#include "formats/text/json_writer.h"
#include "planner/strategies/registry.h"
#include "studies/job/planner_input.h"

namespace pipeloom::cli {
namespace {

// Returns the layout of a job as changes of its file.
std::vector<formats::JobOverride> LayoutChanges(const JobSpec& job) {
  std::vector<formats::JobOverride> changes;
  const ParallelLayout& layout = job.parallel;
  for (const auto& [name, size] :
       {std::pair("tp", layout.tp), std::pair("cp", layout.cp),
        std::pair("ep", layout.ep), std::pair("pp", layout.pp),
        std::pair("dp", layout.dp)}) {
    changes.push_back({absl::StrCat("parallel.", name), absl::StrCat(size)});
  }
  formats::JsonWriter modules;
  modules.BeginArray();
  for (const ModuleParallelism& own : job.module_parallelism) {
    modules.BeginObject().Key("module").String(own.module);
    modules.Key("tp").Int(own.tp).Key("cp").Int(own.cp).EndObject();
  }
  changes.push_back({"parallel.modules", modules.EndArray().text()});
  changes.push_back(
      {"training.microbatches", absl::StrCat(job.training.microbatches)});
  return changes;
}

bool SameLayout(const JobSpec& a, const JobSpec& b) {
  return a.parallel == b.parallel &&
         a.module_parallelism == b.module_parallelism &&
         a.training.microbatches == b.training.microbatches;
}

// Makes the partition that the flags ask for, not the strategy's own.
absl::StatusOr<Partition> GivenPartition(
    const studies::JobInput& input, const PlanningFlags& flags,
    const studies::SearchSettings& settings, const std::string& learned,
    const Context& context, double most) {
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy,
                            planner::MakeStrategy(flags.strategy.value_or(
                                input.job.search.schedule)));
  emulator::StageCostModel costs(input.job, studies::CostsOf(input));
  PIPELOOM_RETURN_IF_ERROR(ApplyLearned(learned, &costs, most));
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PreparedJob prepared,
      PrepareWithPartition(input, *strategy, costs, flags.partition, settings,
                           context));
  return std::move(prepared.partition);
}

}  // namespace

Flag StrategyFlag(FlagTarget target, const char* help) {
  Flag flag{"strategy",
            target,
            "NAME",
            help,
            {planner::StrategyNames().begin(), planner::StrategyNames().end()}};
  flag.aliases = {"schedule"};
  return flag;
}

Flag StrategiesFlag(std::vector<std::string>* values, const char* help) {
  Flag flag{"strategies",
            values,
            "A,B,...",
            help,
            {planner::StrategyNames().begin(), planner::StrategyNames().end()}};
  flag.aliases = {"schedules"};
  return flag;
}

void AppendPlanningFlags(PlanningFlags* values, bool with_steps,
                         std::vector<Flag>* flags) {
  AppendJobFlags(&values->job, with_steps, flags);
  flags->push_back(
      StrategyFlag(&values->strategy, "that plans, instead of the job's"));
  AppendPartitionFlags(&values->partition, flags);
  AppendSearchFlags(&values->search, flags);
}

std::string PlanningFlagsGiven(const PlanningFlags& flags,
                               absl::Span<const absl::string_view> used) {
  std::vector<std::string> given;
  const auto add = [&](absl::string_view name, bool is_given) {
    if (is_given && !absl::c_linear_search(used, name)) {
      given.push_back(absl::StrCat("--", name));
    }
  };
  const JobFlags& job = flags.job;
  const studies::SearchOptions& search = flags.search;
  add("batch", !job.batch.empty());
  add("set", !job.sets.values.empty());
  add("replicas", job.replicas > 0);
  add("microbatches", job.microbatches.has_value());
  add("memory-limit", job.memory_limit.has_value());
  add("reserve", job.reserve_share.has_value());
  add("costs", job.costs != JobFlags().costs);
  add("profile", !job.profile_files.values.empty());
  add("assignment", job.assignment.has_value());
  add("shuffle", job.shuffle.has_value());
  add("strategy", flags.strategy.has_value());
  add("partition", !flags.partition.source.empty());
  add("deadline", search.deadline.has_value());
  add("evaluations", search.evaluations.has_value());
  add("seed", search.seed.has_value());
  add("threads", search.threads > 0);
  add("workers", search.workers.has_value());
  return absl::StrJoin(given, ", ");
}

std::string PlanningArguments(const PlanningFlags& flags) {
  std::vector<std::string> given;
  const auto add = [&](absl::string_view name, const auto& value) {
    if (value.has_value()) {
      given.push_back(absl::StrCat("--", name, " ", *value));
    }
  };
  const auto text = [](const std::string& value) {
    return value.empty() ? std::nullopt : std::optional<std::string>(value);
  };
  const JobFlags& job = flags.job;
  const studies::SearchOptions& search = flags.search;
  if (search.deadline) {
    given.push_back(
        absl::StrCat("--deadline ", search.deadline->count(), "ns"));
  }
  add("evaluations", search.evaluations);
  add("seed", search.seed);
  if (search.threads > 0) {
    given.push_back(absl::StrCat("--threads ", search.threads));
  }
  add("workers", search.workers);
  add("strategy", flags.strategy);
  add("assignment", job.assignment);
  add("shuffle", job.shuffle);
  if (job.costs != JobFlags().costs) add("costs", text(job.costs));
  for (const std::string& file : job.profile_files.values) {
    given.push_back(absl::StrCat("--profile ", file));
  }
  add("data-dir", text(job.data_dir));
  add("partition", text(flags.partition.source));
  return absl::StrJoin(given, " ");
}

absl::StatusOr<studies::JobInput> ReadPlannedJob(const std::string& job,
                                                 const PlanningFlags& flags,
                                                 const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                            ReadJobInput(job, flags.job, context));
  PIPELOOM_RETURN_IF_ERROR(
      TakeLayoutOfFile(flags.partition, flags.job, context, &input));
  return input;
}

absl::StatusOr<std::unique_ptr<planner::JobPlanner>> MakePlanner(
    const studies::JobInput& input, const PlanningFlags& flags,
    const std::string& learned, const Context& context, double most) {
  PIPELOOM_RETURN_IF_ERROR(CheckLearned(learned, most, input.job, context));
  const std::string strategy = flags.strategy.value_or("");
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::string source,
      SourceOf(flags.partition.source,
               strategy.empty() ? input.job.search.schedule : strategy));
  if (source == "rule") {
    return PlannerOf(input, strategy, learned, most, context.stop);
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      Partition partition,
      GivenPartition(input, flags, SettingsOf(flags, input), learned, context,
                     most));
  return studies::MakeJobPlanner(
      input, strategy, /*operators=*/nullptr,
      [&learned, most](emulator::StageCostModel* costs) {
        return ApplyLearned(learned, costs, most);
      },
      std::move(partition));
}

absl::StatusOr<std::optional<UsualPartition>> UsualPartitionOf(
    const studies::JobInput& input, const PlanningFlags& flags,
    const Context& context) {
  const std::string name = flags.strategy.value_or(input.job.search.schedule);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string source,
                            SourceOf(flags.partition.source, name));
  if (absl::string_view(source) != absl::string_view("kept")) {
    return std::nullopt;
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      Partition partition,
      GivenPartition(input, flags, SettingsOf(flags, input), /*learned=*/"",
                     context, emulator::CostLearner::kMaxCorrection));
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, planner::MakeStrategy(name));
  return UsualPartition{std::move(partition),
                        KeptPartitionFile(input, *strategy, flags.partition)};
}

studies::SearchSettings SettingsOf(const PlanningFlags& flags,
                                   const studies::JobInput& input) {
  studies::SearchSettings settings =
      studies::Settle(flags.search, input.job.search);
  settings.defer = input.defer;
  return settings;
}

absl::StatusOr<WhatIfBase> ReadWhatIfBase(const std::string& job,
                                          const PlanningFlags& flags,
                                          const Context& context) {
  WhatIfBase base;
  studies::WhatIfInput& input = base.input;
  PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                            FindDataDir(flags.job.data_dir));
  // The job is read before the batch, so that a misspelt job is reported first.
  const auto read = [](const std::string& path) { return ReadFile(path); };
  PIPELOOM_ASSIGN_OR_RETURN(input.job,
                            formats::JobTemplate::Load(job, data_dir, read));
  PIPELOOM_ASSIGN_OR_RETURN(base.changes, ChangesOf(flags.job));
  // Changes may have the devices of profiles that the job has no use for.
  JobFlags of_changes = flags.job;
  of_changes.may_leave_profiles = true;
  PIPELOOM_ASSIGN_OR_RETURN(input.base, ReadJobInput(job, of_changes, context));
  input.costs = flags.job.costs;
  input.assigned = flags.job.assignment.has_value();
  input.steps = flags.job.steps;
  input.replicas = flags.job.replicas;
  input.schedule = flags.strategy.value_or("");
  input.search = flags.search;
  const std::string& source = flags.partition.source;
  // Each change has a partition of its own, and a search for each takes long.
  if (source.empty() || source == "rule") return base;
  const JobSpec own = input.base.job;
  PIPELOOM_RETURN_IF_ERROR(
      TakeLayoutOfFile(flags.partition, flags.job, context, &input.base));
  if (!SameLayout(own, input.base.job)) {
    for (formats::JobOverride& change : LayoutChanges(input.base.job)) {
      base.changes.push_back(std::move(change));
    }
  }
  input.partition.name = source;
  if (!IsPartitionWord(source)) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string text,
                              ReadPartitionFile(source));
    absl::StrAppend(&input.partition.name, "\n", text);
  }
  input.partition.make =
      [&flags, stop = context.stop](const studies::JobInput& changed) {
        Context quiet;  // Without a progress line for each configuration.
        quiet.stop = stop;
        quiet.warn = [](absl::string_view) {};
        studies::SearchSettings settings = SettingsOf(flags, changed);
        settings.threads = 1;
        return GivenPartition(changed, flags, settings, /*learned=*/"", quiet,
                              emulator::CostLearner::kMaxCorrection);
      };
  return base;
}

}  // namespace pipeloom::cli
