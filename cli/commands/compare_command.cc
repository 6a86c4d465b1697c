// `pipeloom compare`: compares strategies on the same steps under the same
// memory limit.
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/commands/slow_flags.h"
#include "cli/commands/trainer_output.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "cli/input/layout_flags.h"
#include "cli/input/measured_flags.h"
#include "cli/input/partition_input.h"
#include "cli/input/partition_source.h"
#include "cli/input/planning_flags.h"
#include "cli/input/robust_flags.h"
#include "cli/report/report.h"
#include "formats/text/json_writer.h"
#include "ir/plan/trainer.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "studies/compare/compare_strategies.h"
#include "studies/job/planned_step.h"
#include "studies/job/planner_input.h"

namespace pipeloom::cli {
namespace {

// The ablation of DIP (arXiv 2504.14145): each row adds a part to those before
// it.
constexpr const char* kAblation[] = {
    "megatron",  "dip-partition", "dip-interleave",
    "dip-order", "dip",           "pipeloom"};

using studies::BestStatic;
using studies::BestStaticTime;
using studies::MeanP90;
using studies::MegatronTime;
using Row = studies::StrategyRow;

double Speedup(Duration reference, Duration mine) {
  return mine > kZero ? ToSeconds(reference) / ToSeconds(mine) : 0;
}
std::string SpeedupText(Duration reference, Duration mine) {
  return reference > kZero ? absl::StrFormat("%.2fx", Speedup(reference, mine))
                           : "-";
}
void WriteSpeedup(Duration reference, Duration mine,
                  formats::JsonWriter* json) {
  if (reference > kZero) {
    json->Number(Speedup(reference, mine));
  } else {
    json->Null();
  }
}

Table RowsTable(const std::vector<Row>& rows) {
  const bool robust = std::any_of(rows.begin(), rows.end(), [](const Row& row) {
    return MeanP90(row).has_value();
  });
  std::vector<std::string> columns(
      {"strategy", "partition", "step time", "vs static", "vs megatron",
       "bubble", "epilogue", "MFU", "peak memory", "gap to bound", "bound",
       "any partition", "search"});
  if (robust) columns.emplace_back("90th percentile");
  Table table(std::move(columns));
  const Duration megatron = MegatronTime(rows);
  const Duration best_static = BestStaticTime(rows);
  for (const Row& row : rows) {
    const char* const partition = row.given_partition ? "given" : "own";
    if (!row.status.ok()) {
      table.AddRow(
          {row.schedule, partition, std::string(row.status.message())});
      continue;
    }
    const studies::StepMeans means = studies::MeansOf(row.steps);
    std::vector<std::string> cells(
        {row.schedule, partition, FormatDuration(means.step_time),
         SpeedupText(best_static, means.step_time),
         SpeedupText(megatron, means.step_time),
         FormatPercent(means.bubble_ratio), FormatPercent(means.epilogue_ratio),
         FormatPercent(means.mfu), FormatBytes(means.peak),
         FormatPercent(means.gap_ratio),
         row.steps.empty() ? "" : row.steps.back().bound_source(),
         means.any_partition_gap > 0 ? FormatPercent(means.any_partition_gap)
                                     : "-",
         FormatDuration(means.search_time)});
    const std::optional<Duration> p90 = MeanP90(row);
    if (p90) cells.push_back(FormatDuration(*p90));
    table.AddRow(cells);
  }
  return table;
}

// Returns a line for each row without a plan, which says why. The rest of the
// trainer's message is the same for all.
std::string LeftOut(const std::vector<Row>& rows) {
  std::string text;
  for (const Row& row : rows) {
    if (row.status.ok()) continue;
    const absl::string_view message(row.status.message());
    absl::StrAppend(&text, "left out: ", row.schedule, ": ",
                    message.substr(0, message.find("; --for pipeloom")), "\n");
  }
  return text;
}

// Returns a note that names the row which the ratios "vs static" refer to.
std::string StaticNote(const std::vector<Row>& rows) {
  const Row* best = BestStatic(rows);
  if (best == nullptr) return "no static strategy has a plan of every step\n";
  return absl::StrFormat("vs static: %s, the best static row\n",
                         best->schedule);
}

// `warmed_up`: the searches of pipeloom's rows went on from sample steps.
std::string Json(const std::string& job, const std::string& same_partition,
                 const std::string& trainer, bool warmed_up,
                 const std::vector<Row>& rows) {
  formats::JsonWriter json(true);
  json.BeginObject().Key("job").String(job);
  if (!trainer.empty()) json.Key("for").String(trainer);
  json.Key("same_partition");
  if (same_partition.empty()) {
    json.Null();
  } else {
    json.String(same_partition);
  }
  json.Key("warmed_up").Bool(warmed_up);
  json.Key("best_static");
  if (const Row* best = BestStatic(rows)) {
    json.String(best->schedule);
  } else {
    json.Null();
  }
  json.Key("rows").BeginArray();
  const Duration megatron = MegatronTime(rows);
  const Duration best_static = BestStaticTime(rows);
  for (const Row& row : rows) {
    json.BeginObject().Key("schedule").String(row.schedule);
    json.Key("strategy").String(row.schedule);
    json.Key("partition").String(row.given_partition ? "given" : "own");
    if (!row.status.ok()) {
      json.Key("error").String(row.status.message()).EndObject();
      continue;
    }
    const studies::StepMeans means = studies::MeansOf(row.steps);
    json.Key("mean_step_time_us").Micros(means.step_time);
    Duration bound{};
    for (const studies::PlannedStep& step : row.steps)
      bound += step.lower_bound();
    json.Key("mean_lower_bound_us")
        .Micros(bound /
                static_cast<int64_t>(std::max<size_t>(1, row.steps.size())));
    json.Key("gap_ratio").Number(means.gap_ratio);
    json.Key("any_partition_gap_ratio").Number(means.any_partition_gap);
    json.Key("bound_sources").BeginArray();
    for (const studies::PlannedStep& step : row.steps) {
      json.String(step.bound_source());
    }
    json.EndArray();
    json.Key("bubble_ratio").Number(means.bubble_ratio);
    json.Key("epilogue_ratio").Number(means.epilogue_ratio);
    json.Key("mfu").Number(means.mfu);
    json.Key("peak_bytes").Count(means.peak);
    if (const std::optional<Duration> p90 = MeanP90(row)) {
      json.Key("mean_p90_us").Micros(*p90);
    }
    json.Key("search_us").Micros(means.search_time);
    json.Key("speedup_vs_megatron");
    WriteSpeedup(megatron, means.step_time, &json);
    json.Key("speedup_vs_best_static");
    WriteSpeedup(best_static, means.step_time, &json);
    json.EndObject();
  }
  return json.EndArray().EndObject().text() + "\n";
}

class CompareCommand : public Command {
 public:
  CommandText text() const override {
    return {"compare", "JOB --batch FILE [options]",
            "every strategy on the same steps, in one table",
            "Plans the same steps with each strategy under the same memory "
            "limit. A strategy that cannot run says why in its row. Times are "
            "means over the steps; peak memory is the most of any rank and "
            "step; the gap is to the strategy's own lower bound, that of its "
            "stages, \"any partition\" that to what no partition can beat; "
            "search is wall time a step, all replicas. The best static "
            "row is the fastest of the strategies that plan without a look at "
            "the step (gpipe to megatron, megatron-tuned, nnscaler). "
            "--partition is for pipeloom and dip; the other strategies then "
            "keep their own. --same-partition is for all: rows then differ by "
            "strategy alone. --for keeps every row to what one trainer can "
            "execute (docs/integration.md)."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendJobFlags(&job_flags_, true, &flags);
    flags.push_back(StrategiesFlag(&schedules_, "to compare; without it, all"));
    flags.push_back({"ablation", &ablation_, "",
                     "instead: megatron, then partition, interleaving, order "
                     "and memory of dip one after another, then pipeloom"});
    flags.push_back({"static", &static_, "",
                     "a row more: pipeloom's plan of the first step, its order "
                     "replayed on all"});
    AppendPartitionFlags(&partition_flags_, &flags);
    flags.push_back({"same-partition", &same_partition_, "NAME|FILE",
                     "every strategy on one partition: that of the strategy "
                     "NAME, `search`, or a file that `pipeloom partition` "
                     "wrote; a strategy that is not for it says so"});
    AppendSearchFlags(&search_flags_, &flags);
    AppendRobustFlags(&robust_flags_, &flags);
    AppendSlowFlags(&slow_flags_, &flags);
    AppendMeasuredFlags(&measured_flags_, &flags);
    flags.push_back(WarmUpFlag(&warm_up_));
    flags.push_back(TrainerFlag(
        &trainer_, "keep every row to what that trainer can execute"));
    flags.push_back(
        OutputFlag("report", &report_,
                   "write an HTML report with every strategy's first step"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_RETURN_IF_ERROR(CheckSlow(slow_flags_, measured_flags_));
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
    PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                              ReadJobInput(name, job_flags_, context));
    if (!same_partition_.empty()) {
      if (!partition_flags_.source.empty()) {
        return UsageError(
            "--same-partition is for every strategy; leave out --partition");
      }
      // `dip` as a partition rule and as a schedule give the same partition.
      if (!planner::MakeStrategy(same_partition_).ok() ||
          same_partition_ == "dip") {
        if (!IsPartitionWord(same_partition_)) {
          const absl::Status file = ReadFile(same_partition_).status();
          if (!file.ok()) {
            return UsageError(absl::StrCat(
                "--same-partition ", same_partition_, ": ", file.message(),
                "; it is the name of a strategy, search or a file",
                DidYouMean(
                    same_partition_,
                    std::vector<std::string>(planner::StrategyNames().begin(),
                                             planner::StrategyNames().end()))));
          }
        }
        partition_flags_.source = same_partition_;
      }
    }
    PIPELOOM_RETURN_IF_ERROR(
        TakeLayoutOfFile(partition_flags_, job_flags_, context, &input));
    JobSpec slow_job = input.job;
    PIPELOOM_RETURN_IF_ERROR(ApplySlow(slow_flags_, &slow_job));
    PIPELOOM_ASSIGN_OR_RETURN(
        const auto packed,
        studies::PackSteps(input, job_flags_.steps, StudyContextOf(context)));
    emulator::StageCostModel costs(input.job, studies::CostsOf(input));
    std::vector<std::string> schedules = studies::UsualSchedules();
    if (!schedules_.empty()) schedules = schedules_;
    if (ablation_) {
      if (!schedules_.empty()) {
        return UsageError(
            "--ablation compares a fixed list; leave out --strategies");
      }
      schedules.assign(std::begin(kAblation), std::end(kAblation));
    }
    if (static_) schedules.emplace_back(studies::kStaticRow);
    // One search serves every strategy that takes any partition.
    studies::CompareOptions options;
    options.strategies = std::move(schedules);
    options.partition_for_all = !same_partition_.empty();
    studies::SearchSettings& settings = options.search;
    settings = studies::Settle(search_flags_, input.job.search);
    PIPELOOM_RETURN_IF_ERROR(
        CheckWarmUp(warm_up_, settings, options.strategies));
    PIPELOOM_RETURN_IF_ERROR(LimitTo(trainer_, input.job, &options));
    PIPELOOM_RETURN_IF_ERROR(ApplyMeasured(measured_flags_, input, "pipeloom",
                                           partition_flags_, settings, context,
                                           &costs));
    PIPELOOM_ASSIGN_OR_RETURN(const auto judge,
                              MakeStrategyFor(trainer_, "pipeloom"));
    const std::string& source = partition_flags_.source;
    const bool has_own = HasOwnRow(options);
    planner::PreparedJob prepared;  // For the rows of pipeloom.
    if (!source.empty() && (source != "rule" || !same_partition_.empty())) {
      PIPELOOM_ASSIGN_OR_RETURN(
          prepared, PrepareWithPartition(input, *judge, costs, partition_flags_,
                                         settings, context));
      options.partition = prepared.partition;
    } else if (!same_partition_.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(const auto owner,
                                MakeStrategyFor(trainer_, same_partition_));
      PIPELOOM_ASSIGN_OR_RETURN(
          prepared,
          studies::PrepareOwnPartition(input, *owner, costs, context.stop));
      options.partition = prepared.partition;
      prepared.strategy = judge.get();
    } else if (has_own) {
      PIPELOOM_ASSIGN_OR_RETURN(const std::string used,
                                SourceOf(partition_flags_.source, "pipeloom"));
      PIPELOOM_ASSIGN_OR_RETURN(
          prepared, PrepareWithPartition(input, *judge, costs, partition_flags_,
                                         settings, context));
      options.searched = prepared.partition;
      searched_ = used != "rule";
    }
    // Every row is planned and judged with the times of the slow ranks and
    // links, on the partition that it has without.
    std::unique_ptr<emulator::StageCostModel> slow_costs;
    if (slow_flags_.given()) {
      PIPELOOM_ASSIGN_OR_RETURN(
          slow_costs,
          SlowCosts(std::move(slow_job), measured_flags_.learned, &input));
      options.slow_costs = slow_costs.get();
      prepared.costs = slow_costs.get();
    }
    // Lessons are kept for pipeloom's own partition only.
    if (has_own && (same_partition_.empty() || warm_up_.has_value())) {
      PIPELOOM_ASSIGN_OR_RETURN(
          options.lessons, WarmUp(warm_up_, prepared, input, partition_flags_,
                                  settings, context));
      warmed_up_ = !options.lessons.empty();
    }
    settings.defer = input.defer;
    settings.robust = DisturbancesOf(robust_flags_, settings.seed);
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::vector<Row> rows,
        studies::CompareStrategies(input, packed, costs, options,
                                   StudyContextOf(context)));
    const emulator::StageCostModel& judging =
        slow_costs == nullptr ? costs : *slow_costs;
    for (const Row& row : rows) {
      for (const studies::PlannedStep& step : row.steps) {
        const auto notes = studies::MeetingNotes(judging, step);
        if (notes.empty()) continue;
        context.warn(absl::StrCat("note: ", row.schedule, ": ", notes[0]));
        break;
      }
    }
    std::string heading =
        absl::StrFormat("%d step%s of %s, %d replica%s, %s, %s", packed.size(),
                        packed.size() == 1 ? "" : "s", input.batch_name,
                        input.replicas, input.replicas == 1 ? "" : "s",
                        MemoryLimitText(input.job), PlannedWith());
    if (options.trainer != nullptr) {
      absl::StrAppend(&heading, ", all for ", trainer_);
    }
    if (!report_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_,
          ReportHtml(MakeReport(input.job.name, heading, rows, context))));
    }
    if (format_ == "json") {
      context.print(Json(input.job.name, same_partition_,
                         options.trainer == nullptr ? "" : trainer_, warmed_up_,
                         rows));
    } else {
      std::vector<Row> shown = rows;
      std::string left_out;
      if (options.trainer != nullptr) {
        left_out = LeftOut(rows);
        std::erase_if(shown, [](const Row& row) { return !row.status.ok(); });
      }
      context.print(absl::StrCat(input.job.name, ": ", heading, "\n\n",
                                 RowsTable(shown).ToString(), "\n", left_out,
                                 StaticNote(rows)));
      if (!report_.empty()) {
        context.print(absl::StrCat("wrote ", report_, "\n"));
      }
    }
    if (std::any_of(rows.begin(), rows.end(),
                    [](const Row& row) { return row.status.ok(); })) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError("no strategy can run this job");
  }

 private:
  // Sets the trainer of the rows, if it has limits. FailedPrecondition: it
  // cannot run the job. UsageError: options that are not for a trainer.
  absl::Status LimitTo(const std::string& trainer, const JobSpec& job,
                       studies::CompareOptions* options) const {
    const TrainerLimits* const limits = FindTrainer(trainer);
    if (limits == nullptr || limits->everything) return absl::OkStatus();
    if (static_) {
      return UsageError(absl::StrCat("--for ", trainer,
                                     " with --static: use one of the two"));
    }
    if (robust_flags_.robust) {
      return UsageError(absl::StrCat("--for ", trainer,
                                     " with --robust: use one of the two"));
    }
    if (warm_up_.has_value()) {
      return UsageError(absl::StrCat("--for ", trainer,
                                     " with --warm-up: use one of the two"));
    }
    options->trainer = limits;
    return CheckTrainerJob(*limits, job);
  }

  // Returns whether there is a row of pipeloom, and none is for a trainer.
  static bool HasOwnRow(const studies::CompareOptions& options) {
    return options.trainer == nullptr &&
           absl::c_any_of(options.strategies, [](const std::string& name) {
             return name == "pipeloom" || name == studies::kStaticRow;
           });
  }

  // Says with which partitions and lessons the rows are planned.
  std::string PlannedWith() const {
    return warmed_up_ ? absl::StrCat(PartitionText(),
                                     "; pipeloom goes on from plans of sample "
                                     "steps (--warm-up 0s: without)")
                      : PartitionText();
  }

  std::string PartitionText() const {
    if (!same_partition_.empty()) {
      return absl::StrCat("same partition for all: ", same_partition_);
    }
    if (!partition_flags_.source.empty() && partition_flags_.source != "rule") {
      return absl::StrCat("pipeloom and dip on the partition ",
                          partition_flags_.source, ", others on their own");
    }
    if (searched_) {
      return "pipeloom on the partition that it searched, others on their own "
             "(--same-partition search: all on it)";
    }
    return "each on its own partition";
  }

  static Report MakeReport(const std::string& job, const std::string& heading,
                           const std::vector<Row>& rows,
                           const Context& context) {
    Report report;
    report.title = absl::StrCat("Strategies for ", job);
    report.subtitle = heading;
    report.command = context.command_line;
    report.tables.push_back({"Strategies", RowsTable(rows)});
    for (const Row& row : rows) {
      if (!row.status.ok()) continue;
      const planner::PlanResult& slowest = row.steps[0].slowest();
      report.common_axis =
          std::max(report.common_axis, slowest.predicted.step_time());
      report.steps.push_back(
          {.title = absl::StrCat(row.schedule, ": step 0, ",
                                 FormatDuration(row.steps[0].step_time())),
           .plan = &slowest.plan,
           .trace = &slowest.predicted});
    }
    report.notes = {
        "Times and memory are emulated. All drawings have one time scale."};
    return report;
  }

  JobFlags job_flags_{};
  PartitionFlags partition_flags_{};
  bool searched_ = false;  // Whether pipeloom's own partition was searched.
  std::optional<Duration> warm_up_{};
  bool warmed_up_ = false;  // Whether sample steps were searched.
  std::string same_partition_{};
  studies::SearchOptions search_flags_{};
  std::vector<std::string> schedules_{};  // Empty: the usual ones.
  bool ablation_ = false;
  bool static_ = false;
  SlowFlags slow_flags_{};
  RobustFlags robust_flags_{};
  MeasuredFlags measured_flags_{};
  std::string trainer_{};
  std::string report_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeCompareCommand() {
  return std::make_unique<CompareCommand>();
}

}  // namespace pipeloom::cli
