// `pipeloom emulate`: carries a plan out in simulated time.
#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/chrome_trace.h"
#include "cli/command.h"
#include "cli/emulate_against.h"
#include "cli/files.h"
#include "cli/json_writer.h"
#include "cli/plan_source.h"
#include "cli/report.h"
#include "cli/table.h"
#include "cli/trace_summary.h"
#include "emulator/emulate_step.h"

namespace pipeloom::cli {
namespace {

class EmulateCommand : public Command {
 public:
  CommandText text() const override {
    return {"emulate", "JOB --batch FILE | --plan FILE [options]",
            "time and memory of a step, by emulation alone",
            "Carries a plan out in simulated time: compute, transfers over "
            "links, waiting, memory. With JOB the first step of the batch is "
            "planned first (its slowest replica); with --plan the plan is "
            "taken as it is.\n\n"
            "--sharing says which transfers wait for each other: none; those "
            "from one rank to one other; or all out of a rank and all into a "
            "rank.\n\n"
            "--against compares instead: every measured run of a table "
            "(workloads/validation holds some; docs/validation.md says the "
            "columns) is emulated, and errors are shown by row and "
            "framework."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendPlanSourceFlags(&source_, &flags);
    flags.push_back({"against", &against_.file, "FILE",
                     "emulate and compare the measured runs of a CSV"});
    flags.push_back({"csv", &against_.csv_out, "FILE",
                     "with --against: write the comparison as CSV"});
    flags.push_back({"fit", &against_.fit, "",
                     "with --against: fit one scalar a framework"});
    flags.push_back({"sharing",
                     &sharing_,
                     "MODE",
                     "which transfers share a link",
                     {"none", "per-pair", "per-rank"}});
    flags.push_back({"blocking-sends", &blocking_sends_, "",
                     "a rank computes nothing while it sends"});
    flags.push_back(
        {"trace", &trace_, "FILE", "write the timeline as Chrome trace JSON"});
    flags.push_back({"report", &report_, "FILE", "write an HTML report"});
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (!against_.file.empty()) {
      against_.data_dir = source_.job.data_dir;
      against_.json = format_ == "json";
      return EmulateAgainst(against_, context);
    }
    PIPELOOM_ASSIGN_OR_RETURN(const SourcedPlan sourced,
                              GetPlan(source_, args, context));
    emulator::EmulateOptions options;
    options.blocking_sends = blocking_sends_;
    options.sharing = sharing_ == "none" ? emulator::LinkSharing::kNone
                      : sharing_ == "per-rank"
                          ? emulator::LinkSharing::kPerRank
                          : emulator::LinkSharing::kPerPair;
    const auto begin = std::chrono::steady_clock::now();
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                              emulator::EmulateStep(sourced.plan, options));
    const auto took = std::chrono::duration_cast<Duration>(
        std::chrono::steady_clock::now() - begin);
    if (!trace_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          trace_, ChromeTrace({{{&sourced.plan, &trace}}})));
    }
    if (!report_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_, ReportHtml(MakeReport(sourced.plan, trace))));
    }
    if (format_ == "json") {
      context.print(Json(sourced, trace, took));
    } else {
      PrintTable(sourced, trace, took, context);
    }
    return absl::OkStatus();
  }

 private:
  static std::string Json(const SourcedPlan& sourced, const StepTrace& trace,
                          Duration took) {
    const ExecutionPlan& plan = sourced.plan;
    const TraceSummary summary = Summarize(plan.graph, trace);
    JsonWriter json(true);
    json.BeginObject().Key("job").String(plan.job);
    json.Key("step").Int(plan.step).Key("replica").Int(plan.replica);
    json.Key("schedule").String(plan.schedule);
    json.Key("step_time_us").Micros(trace.step_time());
    json.Key("lower_bound_us").Micros(plan.lower_bound);
    json.Key("bubble_ratio").Number(summary.bubble_ratio);
    json.Key("mfu").Number(Mfu(plan, trace.step_time()));
    json.Key("peak_bytes").BeginArray();
    for (const RankSummary& rank : summary.ranks) json.Count(rank.peak.total);
    json.EndArray().Key("ranks").BeginArray();
    for (const RankId r : plan.graph.rank_ids()) {
      const RankSummary& rank = summary.ranks[r];
      json.BeginObject().Key("rank").Int(r.value());
      json.Key("busy_us").Micros(rank.busy());
      json.Key("warm_up_us").Micros(rank.warm_up);
      json.Key("stalls_us").Micros(rank.stalls);
      json.Key("drain_us").Micros(rank.drain);
      json.Key("epilogue_us").Micros(rank.epilogue);
      json.Key("peak_at_us").Micros(rank.peak.at - kStepStart);
      json.Key("peak_items_bytes").BeginObject();
      for (int i = 0; i < kNumMemoryItems; ++i) {
        json.Key(MemoryItemName(static_cast<MemoryItem>(i)));
        json.Count(rank.peak.items[i]);
      }
      json.EndObject().EndObject();
    }
    json.EndArray().Key("emulation_us").Micros(took);
    if (sourced.cache) {
      json.Key("cache_hits").Int(sourced.cache->hits);
      json.Key("cache_misses").Int(sourced.cache->misses);
    }
    return json.EndObject().text() + "\n";
  }

  void PrintTable(const SourcedPlan& sourced, const StepTrace& trace,
                  Duration took, const Context& context) const {
    const ExecutionPlan& plan = sourced.plan;
    const TraceSummary summary = Summarize(plan.graph, trace);
    context.print(absl::StrFormat(
        "%s, schedule %s, step %d, replica %d: %d tasks on %d ranks\n\n"
        "step time  %s\nbubble     %s\nMFU        %s\n"
        "emulated in %s, %.0f ns a task\n",
        plan.job, plan.schedule, plan.step, plan.replica,
        plan.graph.num_tasks(), plan.graph.num_ranks(),
        FormatDuration(trace.step_time()), FormatPercent(summary.bubble_ratio),
        FormatPercent(Mfu(plan, trace.step_time())), FormatDuration(took),
        static_cast<double>(took.count()) /
            std::max(1, plan.graph.num_tasks())));
    if (sourced.cache) {
      const double total =
          static_cast<double>(sourced.cache->hits + sourced.cache->misses);
      context.print(absl::StrFormat(
          "stage costs: %d priced, %d known already (%s)\n",
          sourced.cache->misses, sourced.cache->hits,
          FormatPercent(total > 0
                            ? static_cast<double>(sourced.cache->hits) / total
                            : 0)));
    }
    Table table({"rank", "busy", "warm-up", "stalls", "drain", "epilogue",
                 "peak memory", "weights", "gradients", "optimizer",
                 "activations", "received", "overhead"});
    const auto item = [](const RankSummary& rank, MemoryItem i) {
      return FormatBytes(rank.peak.items[static_cast<int>(i)]);
    };
    for (const RankId r : plan.graph.rank_ids()) {
      const RankSummary& rank = summary.ranks[r];
      table.AddRow({absl::StrCat("rank ", r.value()),
                    FormatDuration(rank.busy()), FormatDuration(rank.warm_up),
                    FormatDuration(rank.stalls), FormatDuration(rank.drain),
                    FormatDuration(rank.epilogue), FormatBytes(rank.peak.total),
                    item(rank, MemoryItem::kWeights),
                    item(rank, MemoryItem::kGradients),
                    item(rank, MemoryItem::kOptimizer),
                    item(rank, MemoryItem::kActivations),
                    item(rank, MemoryItem::kReceived),
                    item(rank, MemoryItem::kOverhead)});
    }
    context.print(absl::StrCat("\n", table.ToString()));
    for (const std::string& path : {trace_, report_}) {
      if (!path.empty()) context.print(absl::StrCat("wrote ", path, "\n"));
    }
  }

  static Report MakeReport(const ExecutionPlan& plan, const StepTrace& trace) {
    const TraceSummary summary = Summarize(plan.graph, trace);
    Report report;
    report.title = absl::StrCat("Emulation of ", plan.job);
    report.subtitle = absl::StrFormat(
        "schedule %s, step %d, replica %d, %d tasks on %d "
        "ranks",
        plan.schedule, plan.step, plan.replica, plan.graph.num_tasks(),
        plan.graph.num_ranks());
    report.figures = {
        {"step time", FormatDuration(trace.step_time()), ""},
        {"bubble", FormatPercent(summary.bubble_ratio),
         "rank time not computing"},
        {"MFU", FormatPercent(Mfu(plan, trace.step_time())), "of bf16 peak"}};
    report.steps = {{absl::StrCat("Step ", plan.step), &plan, &trace}};
    report.notes = {"Times and memory are emulated."};
    return report;
  }

  PlanSource source_{};
  AgainstOptions against_{};
  std::string sharing_ = "per-pair";
  bool blocking_sends_ = false;
  std::string trace_{};
  std::string report_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeEmulateCommand() {
  return std::make_unique<EmulateCommand>();
}

}  // namespace pipeloom::cli
