// `pipeloom partition`: searches a job's partition and writes it as a file.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "cli/input/layout_flags.h"
#include "cli/input/partition_input.h"
#include "cli/input/planning_flags.h"
#include "cli/report/layout_report.h"
#include "cli/report/partition_file.h"
#include "formats/text/json_writer.h"
#include "planner/layout/disaggregation.h"
#include "planner/layout/partition_search.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "studies/job/planner_input.h"
#include "studies/layouts/layout_study.h"

namespace pipeloom::cli {
namespace {

class PartitionCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "partition", "JOB --batch FILE [options]",
        "search which layers are where, once a job; write it as a file",
        "Tries segments, cuts, ranks and sub-microbatch sizes of each module, "
        "and judges each partition by the emulated time of sample steps of "
        "the batch under the job's memory limit. Rules of the job file (layers "
        "that stay together, ranks of the embedding and the loss head, ranks "
        "of a module's own) are kept.\n\n"
        "The file is JSON, to be read and edited; every command that plans "
        "takes it as --partition FILE. Here --partition dip (or --rule), "
        "--partition rule and --partition FILE show and write a partition "
        "without a search.\n\n"
        "--layouts searches tp, cp, ep, pp and dp of the whole job as well: "
        "all layouts of the job's GPUs, or of --gpus, that are legal and split "
        "the same global batch, cut by memory and by a bound, screened, and "
        "the best few searched in full. The file then holds the layout too, "
        "and `plan` and `compare` take it over. --tp and so on fix a size. "
        "With --by-module, modules other than the largest may have a smaller "
        "tp and cp: their copies in a rank work on different samples.\n\n"
        "Ctrl-C ends a search with the best so far, which is shown and "
        "written; the exit code is 130.\n\n"
        "--disaggregate answers another question: how many of the job's GPUs, "
        "in which layout, encoders, backbone and generators would get if each "
        "had GPUs of its own (DistTrain), and whether that is faster than the "
        "job's own layout, by `megatron` and by the job's strategy."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendJobFlags(&job_flags_, false, &flags);
    flags.push_back(StrategyFlag(&strategy_, "that judges"));
    flags.push_back({"partition", &partition_.source, "SOURCE",
                     "take this one: `dip` (DIP's rule), `rule` (the "
                     "strategy's own, unsearched; pipeloom's is the fastest of "
                     "all strategies') or a file that this command wrote; "
                     "default: `search`"});
    flags.push_back({"tries", &tries_, "N", "partitions to try", {}, 1, 1e6});
    flags.push_back({"effort",
                     &effort_,
                     "N",
                     "times as many partitions, going on beyond the first "
                     "optimum: to see what a longer search would find",
                     {},
                     1,
                     1000});
    AppendLayoutFlags(&layout_flags_, &flags);
    flags.push_back({"seed", &search_flags_.seed, "N", "of the search", {}, 0});
    flags.push_back({"threads",
                     &search_flags_.threads,
                     "N",
                     "of the search; 0: one for each core",
                     {},
                     0,
                     1024});
    flags.push_back({"rule", &rule_, "",
                     "DIP's rule, the same as --partition dip; "
                     "not that of --partition rule"});
    flags.push_back({"disaggregate", &disaggregate_, "",
                     "size units with GPUs of their own instead"});
    flags.push_back(OutputFlag("out", &out_, "write the partition"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
    PIPELOOM_RETURN_IF_ERROR(SettleSource());
    PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                              ReadJobInput(name, job_flags_, context));
    if (disaggregate_) return Disaggregate(input, context);
    PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<planner::Strategy> strategy,
                              planner::MakeStrategy(strategy_));
    if (layout_flags_.layouts) return Layouts(input, *strategy, context);
    Answer answer{.job = input.job};
    if (partition_.source.empty()) {
      PIPELOOM_RETURN_IF_ERROR(Search(input, *strategy, context, &answer));
    } else {
      PIPELOOM_RETURN_IF_ERROR(
          TakeLayoutOfFile(partition_, job_flags_, context, &input));
      answer.with_layout = input.job != answer.job;
      answer.job = input.job;
      const emulator::StageCostModel costs(input.job, studies::CostsOf(input));
      PIPELOOM_ASSIGN_OR_RETURN(
          planner::PreparedJob prepared,
          PrepareWithPartition(input, *strategy, costs, partition_,
                               studies::Settle(search_flags_, input.job.search),
                               context));
      answer.partition = std::move(prepared.partition);
      answer.comment =
          partition_.source == "dip" ? std::string("DIP's rule")
          : partition_.source == "rule"
              ? absl::StrCat("own partition of ", strategy_, ", unsearched")
              : absl::StrCat("of ", partition_.source);
    }
    return Show(answer, context);
  }

 private:
  // A partition with what is known of it.
  struct Answer {
    JobSpec job{};
    Partition partition{};
    std::string comment{};
    std::string report{};      // Lines before the table of the partition.
    bool with_layout = false;  // Whether the layout belongs to the answer.
    // The search that found it, if one did.
    std::optional<planner::PartitionSearchResult> found{};
    std::vector<planner::LayoutOutcome> layouts{};
    Duration own_time{};  // With the job's own layout; 0 if it is not known.
  };

  // Checks the options and sets the partition's source, empty for a search.
  absl::Status SettleSource() {
    PIPELOOM_RETURN_IF_ERROR(CheckLayoutFlags(layout_flags_));
    if (disaggregate_ && layout_flags_.layouts) {
      return UsageError(
          "--disaggregate sizes layouts of its own; leave out "
          "--layouts");
    }
    std::string& source = partition_.source;
    if (rule_ && !source.empty() && source != "dip") {
      return UsageError(absl::StrCat("--rule is --partition dip; leave out ",
                                     "--rule or --partition ", source));
    }
    if (rule_) source = "dip";
    if (source == "search") source.clear();
    if (!source.empty() && (disaggregate_ || layout_flags_.layouts)) {
      return UsageError(absl::StrCat(
          "--partition ", source, " is not searched; leave out ",
          disaggregate_ ? "--disaggregate" : "--layouts", " or --partition"));
    }
    return absl::OkStatus();
  }

  absl::Status Search(const studies::JobInput& input,
                      const planner::Strategy& strategy, const Context& context,
                      Answer* answer) const {
    const emulator::StageCostModel costs(input.job, studies::CostsOf(input));
    // The strategy's own partition is the start, as where `plan` searches;
    // after an interrupt that of the search.
    absl::StatusOr<planner::PreparedJob> own =
        studies::PrepareOwnPartition(input, strategy, costs, context.stop);
    if (!own.ok() && !absl::IsCancelled(own.status())) return own.status();
    std::optional<Partition> start;
    if (own.ok()) start = std::move(own->partition);
    PIPELOOM_ASSIGN_OR_RETURN(
        answer->found,
        RunPartitionSearch(input, strategy, costs, tries_,
                           studies::Settle(search_flags_, input.job.search),
                           context, static_cast<int32_t>(effort_),
                           std::move(start)));
    const planner::PartitionSearchResult& found = *answer->found;
    if (found.misfits > 0) {
      context.warn(absl::StrFormat(
          "note: %d of %d sample steps fit by no partition that was tried: "
          "%s",
          found.misfits, found.judged, found.misfit));
    }
    answer->partition = found.partition;
    answer->comment = absl::StrFormat(
        "%s%s; %d partitions tried on samples of %s: emulated step time %s, "
        "by the strategy's own %s",
        UntilNow(context), found.recipe, found.tried, input.batch_name,
        FormatDuration(found.step_time),
        found.rule_time > kZero ? FormatDuration(found.rule_time)
                                : "no plan fits");
    return absl::OkStatus();
  }

  // Writes and prints the answer, also after an interrupt: then it is the best
  // until now.
  absl::Status Show(const Answer& answer, const Context& context) const {
    const JobSpec& job = answer.job;
    if (!out_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          out_, PartitionJson(job, answer.partition, answer.comment,
                              answer.with_layout)));
    }
    if (format_ == "json") {
      context.print(Json(answer));
    } else {
      context.print(absl::StrCat(
          job.name, ": ", answer.comment, "; ", MemoryLimitText(job), "\n\n",
          answer.report, PartitionTable(job, answer.partition).ToString()));
      if (!out_.empty()) context.print(absl::StrCat("wrote ", out_, "\n"));
    }
    if (!context.stop.stop_requested()) return absl::OkStatus();
    return absl::CancelledError("stopped");
  }

  std::string Json(const Answer& answer) const {
    formats::JsonWriter json(true);
    json.BeginObject().Key("job").String(answer.job.name);
    json.Key("strategy").String(strategy_);
    json.Key("comment").String(answer.comment);
    json.Key("memory_limit_bytes").Count(answer.job.MemoryLimit());
    if (answer.found) {
      json.Key("step_time_us").Micros(answer.found->step_time);
      if (answer.found->rule_time > kZero) {
        json.Key("rule_time_us").Micros(answer.found->rule_time);
      }
      json.Key("partitions_tried").Int(answer.found->tried);
      json.Key("recipe").String(answer.found->recipe);
    }
    if (answer.own_time > kZero) {
      json.Key("own_layout_time_us").Micros(answer.own_time);
    }
    WritePartition(answer.job, answer.partition, &json);
    if (!answer.layouts.empty()) WriteLayouts(answer.layouts, &json);
    if (!out_.empty()) json.Key("out").String(out_);
    return absl::StrCat(json.EndObject().text(), "\n");
  }

  static const char* UntilNow(const Context& context) {
    return context.stop.stop_requested() ? "the best until the interrupt: "
                                         : "";
  }

  absl::Status Layouts(const studies::JobInput& input,
                       const planner::Strategy& strategy,
                       const Context& context) const {
    const studies::SearchSettings settings =
        studies::Settle(search_flags_, input.job.search);
    planner::LayoutSearchOptions options;
    options.fixed = FixedBy(layout_flags_);
    planner::PartitionSearchOptions& search = options.search;
    search.partitions = static_cast<int32_t>(tries_);
    search.effort = static_cast<int32_t>(effort_);
    search.seed = settings.seed;
    search.threads = settings.threads;
    PIPELOOM_ASSIGN_OR_RETURN(const planner::LayoutSearchResult result,
                              studies::SearchLayouts(input, strategy, options,
                                                     StudyContextOf(context)));
    const JobSpec& job = result.job;
    Answer answer{.job = job,
                  .partition = result.found.partition,
                  .with_layout = true,
                  .found = result.found,
                  .layouts = result.layouts,
                  .own_time = result.own_time};
    answer.comment = absl::StrFormat(
        "%s%s, %d microbatches; %s; of %d layouts of %d GPUs, on samples of "
        "%s: "
        "emulated step time %s%s",
        UntilNow(context), LayoutWords(job.parallel, job.module_parallelism),
        job.training.microbatches, result.found.recipe, result.layouts.size(),
        job.parallel.num_gpus(), input.batch_name,
        FormatDuration(result.found.step_time),
        result.own_time > kZero ? absl::StrCat(", with the job's own layout ",
                                               FormatDuration(result.own_time))
                                : "");
    answer.report = absl::StrCat(LayoutReport(result), "\n");
    return Show(answer, context);
  }

  absl::Status Disaggregate(const studies::JobInput& input,
                            const Context& context) const {
    PIPELOOM_ASSIGN_OR_RETURN(
        const planner::PlacementComparison found,
        planner::ComparePlacements(
            input.job, studies::SampleOf(input.batch), studies::PricesOf(input),
            planner::kPlacementEvaluations, context.stop));
    if (format_ == "json") {
      context.print(PlacementsJson(input.job, found));
      return absl::OkStatus();
    }
    const partition::OrchestrationAnswer& answer = found.answer;
    Table table({"unit", "GPUs", "tp", "dp", "pp", "activations",
                 "time of a microbatch"});
    const auto add = [&](const char* name, const partition::UnitAnswer& unit) {
      if (unit.gpus == 0) return;
      table.AddRow({name, absl::StrCat(unit.gpus), absl::StrCat(unit.tp),
                    absl::StrCat(unit.dp), absl::StrCat(unit.pp),
                    unit.recompute ? "recomputed" : "kept",
                    absl::StrFormat("%.1f ms", unit.seconds * 1e3)});
    };
    add("encoder", answer.encoder);
    add("backbone", answer.backbone);
    add("generator", answer.generator);
    const partition::UnitAnswer& baseline = found.megatron_style.backbone;
    const auto line = [&](const std::string& what, Duration time) {
      if (time == kZero) return absl::StrFormat("  %-60s does not fit\n", what);
      return absl::StrFormat("  %-60s %9s  %.2fx\n", what, FormatDuration(time),
                             ToSeconds(time) / ToSeconds(found.disaggregated));
    };
    const std::string own = absl::StrFormat(
        "the job's layout, tp %d pp %d dp %d", input.job.parallel.tp,
        input.job.parallel.pp, input.job.parallel.dp);
    context.print(absl::StrCat(
        absl::StrFormat("%s: %d of %d GPUs, step %.3f s by the formulation\n\n",
                        input.job.name, answer.gpus(),
                        input.job.parallel.num_gpus(), answer.seconds()),
        table.ToString(), "\nemulated step:\n",
        line("disaggregated, 1F1B, microbatches reordered",
             found.disaggregated),
        line(baseline.gpus == 0
                 ? std::string("encoder and generator as stages, 1F1B")
                 : absl::StrFormat("encoder and generator as stages, tp %d, %d "
                                   "stages, dp %d, 1F1B",
                                   baseline.tp, baseline.pp, baseline.dp),
             found.megatron),
        line(absl::StrCat(own, ", megatron"), found.colocated),
        input.job.search.schedule == "megatron"
            ? std::string()
            : line(absl::StrCat(own, ", ", input.job.search.schedule),
                   found.own_strategy),
        "times of the job's layout are those of its slowest replica, each "
        "strategy on the partition of its rule\n",
        found.disaggregate() ? "disaggregating is faster\n"
                             : "the job's layout is faster\n"));
    return absl::OkStatus();
  }

  static std::string PlacementsJson(const JobSpec& job,
                                    const planner::PlacementComparison& found) {
    const partition::OrchestrationAnswer& answer = found.answer;
    formats::JsonWriter json(true);
    json.BeginObject().Key("job").String(job.name);
    json.Key("gpus").Int(answer.gpus());
    json.Key("job_gpus").Int(job.parallel.num_gpus());
    json.Key("formulated_step_time_us")
        .Micros(pipeloom::Seconds(answer.seconds()));
    json.Key("units").BeginArray();
    for (const auto& [name, unit] :
         {std::pair("encoder", &answer.encoder),
          std::pair("backbone", &answer.backbone),
          std::pair("generator", &answer.generator)}) {
      if (unit->gpus == 0) continue;
      json.BeginObject().Key("unit").String(name).Key("gpus").Int(unit->gpus);
      json.Key("tp").Int(unit->tp).Key("dp").Int(unit->dp);
      json.Key("pp").Int(unit->pp).Key("recompute").Bool(unit->recompute);
      json.Key("microbatch_us").Micros(pipeloom::Seconds(unit->seconds));
      json.EndObject();
    }
    json.EndArray();
    // Placements that do not fit are left out.
    for (const auto& [key, time] :
         {std::pair("disaggregated_us", found.disaggregated),
          std::pair("encoder_as_stages_us", found.megatron),
          std::pair("job_layout_us", found.colocated),
          std::pair("job_layout_own_strategy_us", found.own_strategy)}) {
      if (time > kZero) json.Key(key).Micros(time);
    }
    json.Key("disaggregate").Bool(found.disaggregate());
    return absl::StrCat(json.EndObject().text(), "\n");
  }

  JobFlags job_flags_{};
  studies::SearchOptions search_flags_{};
  std::string strategy_ = "pipeloom";
  PartitionFlags partition_{};
  LayoutFlags layout_flags_{};
  int64_t tries_ = planner::PartitionSearchOptions().partitions;
  int64_t effort_ = 1;
  bool rule_ = false;
  bool disaggregate_ = false;
  std::string out_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakePartitionCommand() {
  return std::make_unique<PartitionCommand>();
}

}  // namespace pipeloom::cli
