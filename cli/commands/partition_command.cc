// `pipeloom partition`: searches a job's partition and writes it as a file.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "cli/input/job_input.h"
#include "cli/input/layout_flags.h"
#include "cli/input/partition_input.h"
#include "cli/report/layout_report.h"
#include "cli/report/partition_file.h"
#include "partition/placement/placement.h"
#include "planner/layout/disaggregation.h"
#include "planner/layout/partition_search.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
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
        "The file is JSON, to be read and edited; `pipeloom plan --partition "
        "FILE` and `pipeloom compare --partition FILE` take it. With --rule "
        "the partition is that of DIP's rule, unsearched.\n\n"
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
        "had GPUs of its own (DistTrain), and whether that is faster."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendJobFlags(&job_flags_, false, &flags);
    flags.push_back(
        {"schedule",
         &schedule_,
         "NAME",
         "the strategy that judges",
         {planner::StrategyNames().begin(), planner::StrategyNames().end()}});
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
    flags.push_back({"rule", &rule_, "", "take DIP's rule, do not search"});
    flags.push_back({"disaggregate", &disaggregate_, "",
                     "size units with GPUs of their own instead"});
    flags.push_back({"out", &out_, "FILE", "write the partition"});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
    PIPELOOM_ASSIGN_OR_RETURN(const studies::JobInput input,
                              ReadJobInput(name, job_flags_, context));
    PIPELOOM_RETURN_IF_ERROR(CheckLayoutFlags(layout_flags_));
    if (disaggregate_ && layout_flags_.layouts) {
      return UsageError(
          "--disaggregate sizes layouts of its own; leave out "
          "--layouts");
    }
    if (disaggregate_) return Disaggregate(input, context);
    PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<planner::Strategy> strategy,
                              planner::MakeStrategy(schedule_));
    if (layout_flags_.layouts) return Layouts(input, *strategy, context);
    const emulator::StageCostModel costs(input.job, studies::CostsOf(input));
    Partition partition;
    std::string comment;
    if (rule_) {
      PIPELOOM_ASSIGN_OR_RETURN(
          partition, partition::SeparatedPartition(
                         input.job, costs, studies::SampleOf(input.batch)));
      comment = "DIP's rule";
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(
          const planner::PartitionSearchResult found,
          RunPartitionSearch(input, *strategy, costs, tries_,
                             studies::Settle(search_flags_, input.job.search),
                             context, static_cast<int32_t>(effort_)));
      partition = found.partition;
      if (found.misfits > 0) {
        context.warn(absl::StrFormat(
            "note: %d of %d sample steps fit by no partition that was tried: "
            "%s",
            found.misfits, found.judged, found.misfit));
      }
      comment = absl::StrFormat(
          "%s%s; %d partitions tried on samples of %s: emulated step time %s, "
          "by DIP's rule %s",
          UntilNow(context), found.recipe, found.tried, input.batch_name,
          FormatDuration(found.step_time),
          found.rule_time > kZero ? FormatDuration(found.rule_time)
                                  : "no plan fits");
    }
    context.print(absl::StrCat(
        input.job.name, ": ", comment, "; ", MemoryLimitText(input.job), "\n\n",
        PartitionTable(input.job, partition).ToString()));
    return Write(PartitionJson(input.job, partition, comment), context);
  }

 private:
  // Writes the best partition found so far, also after an interrupt.
  absl::Status Write(const std::string& text, const Context& context) const {
    if (!out_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(out_, text));
      context.print(absl::StrCat("wrote ", out_, "\n"));
    }
    if (!context.stop.stop_requested()) return absl::OkStatus();
    return absl::CancelledError("stopped");
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
    const std::string comment = absl::StrFormat(
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
    context.print(absl::StrCat(
        input.job.name, ": ", comment, "; ", MemoryLimitText(input.job), "\n\n",
        LayoutReport(result), "\n",
        PartitionTable(job, result.found.partition).ToString()));
    return Write(PartitionJson(job, result.found.partition, comment,
                               /*with_layout=*/true),
                 context);
  }

  static absl::Status Disaggregate(const studies::JobInput& input,
                                   const Context& context) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const planner::PlacementComparison found,
        planner::ComparePlacements(input.job, studies::SampleOf(input.batch),
                                   studies::PricesOf(input)));
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
      if (time == kZero) return absl::StrFormat("  %-58s does not fit\n", what);
      return absl::StrFormat("  %-58s %9s  %.2fx\n", what, FormatDuration(time),
                             ToSeconds(time) / ToSeconds(found.disaggregated));
    };
    context.print(absl::StrCat(
        absl::StrFormat("%s: %d of %d GPUs, step %.3f s by the formulation\n\n",
                        input.job.name, answer.gpus(),
                        input.job.parallel.num_gpus(), answer.seconds()),
        table.ToString(), "\nemulated step:\n",
        line("disaggregated, 1F1B, microbatches reordered",
             found.disaggregated),
        line(absl::StrFormat("encoder and generator as stages, tp %d, %d "
                             "stages, dp %d, 1F1B",
                             baseline.tp, baseline.pp, baseline.dp),
             found.megatron),
        line(absl::StrFormat("the job's layout, tp %d pp %d dp %d, megatron",
                             input.job.parallel.tp, input.job.parallel.pp,
                             input.job.parallel.dp),
             found.colocated),
        found.disaggregate() ? "disaggregating is faster\n"
                             : "the job's layout is faster\n"));
    return absl::OkStatus();
  }

  JobFlags job_flags_{};
  studies::SearchOptions search_flags_{};
  std::string schedule_ = "pipeloom";
  LayoutFlags layout_flags_{};
  int64_t tries_ = planner::PartitionSearchOptions().partitions;
  int64_t effort_ = 1;
  bool rule_ = false;
  bool disaggregate_ = false;
  std::string out_{};
};

}  // namespace

std::unique_ptr<Command> MakePartitionCommand() {
  return std::make_unique<PartitionCommand>();
}

}  // namespace pipeloom::cli
