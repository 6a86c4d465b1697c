// `pipeloom trace`: analyses measured traces of a pipeline run.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/commands/op_log_output.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "cli/console/table.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "cli/report/explain_words.h"
#include "cli/report/report.h"
#include "cli/report/timeline_text.h"
#include "emulator/step/emulate_step.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_writer.h"
#include "planner/lower/lower_plan.h"
#include "planner/search/search_graph.h"
#include "trace/chrome_trace.h"
#include "trace/trace_analysis.h"
#include "trace/trace_files.h"
#include "trace/trace_import.h"
#include "trace/trace_summary.h"

namespace pipeloom::cli {
namespace {

class TraceCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "trace", "FILE... [options]",
        "read measured traces: costs, replay, critical path",
        "Reads Chrome traces of a pipeline run, as PyTorch's profiler or "
        "`pipeloom run --trace` writes them, one file a rank or one for "
        "all, or a folder of them. Clocks of several files are brought "
        "together. Prints the "
        "measured costs of the stages, replays the step in the emulator, "
        "and shows the critical path and why ranks were idle.\n\n"
        "With --evaluations or --deadline a better order of the measured "
        "tasks is searched. --out writes the step as a plan, --graph as a "
        "TaskGraph for `pipeloom search`: both have the measured costs.\n\n"
        "One file that ends in .csv is an operation log of a training: what "
        "each worker did in each step, with columns step, dp, stage, "
        "start_ms (from the beginning of the step), op, microbatch (of F and "
        "B), duration_ms. An op is F or B (forward, backward), FS, FR, BS or "
        "BR (their sends and receives), AG or RS (all-gather, reduce-scatter "
        "among replicas), EM (tied embeddings), CLIP (gradient norm), LN "
        "(layer norms' gradients), GC (garbage collection) or OPT "
        "(optimizer). Its steps are replayed, and the slowdown is attributed "
        "to operations, stages, replicas and workers."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags = {
        {"iteration",
         &iteration_,
         "N",
         "which of several iterations, from 0; -1: the last whole one",
         {},
         -1,
         1e6},
        OutputFlag("out", &out_, "write the step as a plan",
                   Output::kNamedFile),
        OutputFlag("graph", &graph_, "write it as a TaskGraph (JSON)"),
        OutputFlag(
            "trace", &trace_,
            "write the measured step, clocks aligned, as Chrome trace JSON"),
        OutputFlag("report", &report_,
                   "write an HTML report: the replay over what was measured")};
    const size_t of_search = flags.size();
    AppendSearchFlags(&search_, &flags,
                      "none; without --evaluations no search is made");
    for (size_t i = of_search; i < flags.size(); ++i) {
      if (flags[i].name == "deadline" || flags[i].name == "evaluations") {
        continue;
      }
      flags[i].needs = {"evaluations", "deadline"};
    }
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (args.empty()) return UsageError("give one trace file or more");
    if (absl::EndsWith(args.front(), ".csv")) return RunOpLog(args, context);
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<trace::TraceSource> sources,
                              trace::OpenTraces(args));
    const absl::StatusOr<trace::ImportedStep> imported =
        trace::ImportTrace(sources, static_cast<int32_t>(iteration_));
    if (!imported.ok()) return ExplainError(args, imported.status());
    const trace::ImportedStep& step = *imported;
    const ExecutionPlan& plan = step.plan;
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace replay,
                              emulator::EmulateStep(plan));
    const TraceComparison compared = CompareTraces(replay, step.measured);
    std::optional<Duration> better;
    if (search_.evaluations || search_.deadline) {
      const studies::SearchSettings settings =
          studies::Settle(search_, SearchSpec());
      const Progress progress(context, "searching", 1);
      PIPELOOM_ASSIGN_OR_RETURN(
          const planner::SearchResult found,
          planner::SearchGraph(plan.graph, settings.seed,
                               studies::StartBudget(settings, context.stop),
                               step.order));
      better = found.schedule.step_time();
    }
    if (!out_.empty()) PIPELOOM_RETURN_IF_ERROR(WritePlan(out_, plan));
    if (!graph_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(
          WriteFileAtomically(graph_, formats::PrintTaskGraph(plan.graph)));
    }
    if (!trace_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          trace_, trace::ChromeTrace({{{&plan, &step.measured}}})));
    }
    if (!report_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_, ReportHtml(MakeReport(step, replay, compared, context))));
    }
    // The best until an interrupt is an answer too.
    const absl::Status end = context.stop.stop_requested()
                                 ? absl::CancelledError("stopped")
                                 : absl::OkStatus();
    if (format_ == "json") {
      context.print(Json(step, replay, compared, better));
      return end;
    }
    context.print(Words(step, replay, compared, better));
    for (const std::string& path : {out_, graph_, trace_, report_}) {
      if (!path.empty()) context.print(absl::StrCat("wrote ", path, "\n"));
    }
    return end;
  }

 private:
  // Returns the error of reading traces, or what is wrong if one is a plan.
  static absl::Status ExplainError(const std::vector<std::string>& args,
                                   const absl::Status& error) {
    for (const std::string& file : args) {
      const absl::StatusOr<std::string> content = ReadFile(file);
      if (!content.ok() || !IsPlan(*content)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(file, " is a plan, no trace; `pipeloom run ", file,
                       " --trace FILE` measures one and `pipeloom explain ",
                       file, "` says what the plan does"));
    }
    return error;
  }

  absl::Status RunOpLog(const std::vector<std::string>& args,
                        const Context& context) const {
    if (args.size() > 1) {
      return UsageError(
          absl::StrCat("give one operation log, not also ", args[1]));
    }
    for (const auto& [name, value] :
         {std::pair("--out", &out_), std::pair("--graph", &graph_),
          std::pair("--trace", &trace_), std::pair("--report", &report_)}) {
      if (value->empty()) continue;
      return UsageError(
          absl::StrCat(name, " is for Chrome traces; ", args[0],
                       " is an operation log, whose output is a table or "
                       "--format json"));
    }
    return PrintOpLog({.path = args[0],
                       .iteration = iteration_,
                       .search = search_,
                       .json = format_ == "json"},
                      context);
  }

  static Report MakeReport(const trace::ImportedStep& step,
                           const StepTrace& replay,
                           const TraceComparison& compared,
                           const Context& context) {
    Report report;
    report.title = "Measured step";
    report.subtitle = absl::StrFormat(
        "%d tasks on %d ranks, iteration %d of %d", step.plan.graph.num_tasks(),
        step.plan.graph.num_ranks(), step.plan.step, step.iterations);
    report.command = context.command_line;
    report.figures = {
        {"measured", FormatDuration(compared.measured_step_time), ""},
        {"replayed", FormatDuration(compared.predicted_step_time),
         absl::StrFormat("measured %+.2f %%", 100 * compared.step_time_error)}};
    report.steps = {{.title = "What was measured",
                     .plan = &step.plan,
                     .trace = &step.measured},
                    {.title = "Replay of the measured tasks",
                     .plan = &step.plan,
                     .trace = &replay,
                     .measured = &step.measured}};
    report.notes = {
        "The replay runs the measured tasks in their measured order with "
        "the median hand-over between tasks and the median transfer "
        "between two ranks."};
    return report;
  }

  static std::string Words(const trace::ImportedStep& step,
                           const StepTrace& replay,
                           const TraceComparison& compared,
                           const std::optional<Duration>& better) {
    const StageGraph& graph = step.plan.graph;
    std::string text = absl::StrFormat(
        "%d events; %d tasks on %d ranks, iteration %d of %d\n\n"
        "measured  %s\nreplayed  %s (measured %+.2f %%)\n",
        step.events, graph.num_tasks(), graph.num_ranks(), step.plan.step,
        step.iterations, FormatDuration(compared.measured_step_time),
        FormatDuration(compared.predicted_step_time),
        100 * compared.step_time_error);
    if (better) {
      absl::StrAppendFormat(
          &text, "reordered %s (%+.2f %% of the replay)\n",
          FormatDuration(*better),
          100 * (ToSeconds(*better) /
                     std::max(1e-12, ToSeconds(replay.step_time())) -
                 1));
    }
    absl::StrAppend(&text, "\n", TimelineText(graph, step.measured));
    Table costs({"module", "stage", "pass", "tasks", "mean", "median", "most"});
    for (const trace::MeasuredCost& cost : trace::CostsOf(graph)) {
      costs.AddRow(
          {graph.module_names()[static_cast<size_t>(cost.module.value())],
           absl::StrCat(cost.stage.value()),
           std::string(1, PassLetter(cost.pass)), absl::StrCat(cost.count),
           FormatDuration(cost.mean), FormatDuration(cost.median),
           FormatDuration(cost.most)});
    }
    absl::StrAppend(&text, "\n", costs.ToString());
    if (const Duration most =
            *std::max_element(step.handover.begin(), step.handover.end());
        most > kZero) {
      absl::StrAppend(
          &text,
          "\nin each: what its rank does between tasks when nothing "
          "has to be waited for,\nup to ",
          FormatDuration(most), "\n");
    }
    if (std::any_of(step.clocks.begin(), step.clocks.end(),
                    [](const auto& c) { return c.offset_ns != 0; })) {
      Table clocks({"clock of", "behind rank 0's", "drift"});
      for (const RankId r : graph.rank_ids()) {
        const trace::ClockFit& fit = step.clocks[r];
        clocks.AddRow(
            {absl::StrCat("rank ", r.value()),
             FormatDuration(Duration(static_cast<int64_t>(fit.offset_ns))),
             absl::StrFormat("%+.1f us/s", fit.drift * 1e6)});
      }
      absl::StrAppend(&text, "\n", clocks.ToString());
    }
    const trace::TraceAnalysis analysis =
        trace::Analyze(step.plan, step.measured);
    absl::StrAppend(
        &text, BubbleWords(graph, step.measured, analysis, RankId::None()));
    absl::StrAppend(&text, CriticalWords(graph, step.measured, analysis));
    absl::StrAppend(&text, WaitWords(graph, analysis, MicrobatchId::None()));
    return text;
  }

  static std::string CriticalWords(const StageGraph& graph,
                                   const StepTrace& trace,
                                   const trace::TraceAnalysis& analysis) {
    using Kind = trace::PathPiece::Kind;
    std::map<RankId, Duration> tasks;
    Duration transfer{}, other{};
    int changes = 0;
    RankId last;
    for (const trace::PathPiece& piece : analysis.critical) {
      const Duration length = piece.end - piece.start;
      if (piece.kind == Kind::kTask) {
        tasks[piece.rank] += length;
        if (!last.is_none() && last != piece.rank) ++changes;
        last = piece.rank;
      } else if (piece.kind == Kind::kTransfer) {
        transfer += length;
      } else {
        other += length;
      }
    }
    const double whole = std::max(1e-12, ToSeconds(trace.step_time()));
    Table table({absl::StrFormat("critical path, %d rank changes", changes),
                 "time", "share"});
    const auto add = [&](const std::string& name, Duration d) {
      if (d == kZero) return;
      table.AddRow(
          {name, FormatDuration(d), FormatPercent(ToSeconds(d) / whole)});
    };
    for (const auto& [rank, time] : tasks) {
      add(absl::StrCat("tasks of rank ", rank.value()), time);
    }
    add("transfers", transfer);
    add("other", other);
    (void)graph;
    return absl::StrCat("\n", table.ToString());
  }

  static std::string Json(const trace::ImportedStep& step,
                          const StepTrace& replay,
                          const TraceComparison& compared,
                          const std::optional<Duration>& better) {
    const StageGraph& graph = step.plan.graph;
    const trace::TraceAnalysis analysis =
        trace::Analyze(step.plan, step.measured);
    formats::JsonWriter json(true);
    json.BeginObject().Key("events").Int(step.events);
    json.Key("tasks").Int(graph.num_tasks());
    json.Key("ranks").Int(graph.num_ranks());
    json.Key("iterations").Int(step.iterations);
    json.Key("measured_us").Micros(compared.measured_step_time);
    json.Key("replayed_us").Micros(replay.step_time());
    json.Key("error_ratio").Number(compared.step_time_error);
    if (better) json.Key("reordered_us").Micros(*better);
    json.Key("costs").BeginArray();
    for (const trace::MeasuredCost& cost : trace::CostsOf(graph)) {
      json.BeginObject().Key("module").String(
          graph.module_names()[static_cast<size_t>(cost.module.value())]);
      json.Key("stage").Int(cost.stage.value());
      json.Key("pass").String(std::string(1, PassLetter(cost.pass)));
      json.Key("count").Int(cost.count);
      json.Key("mean_us").Micros(cost.mean);
      json.Key("median_us").Micros(cost.median).EndObject();
    }
    json.EndArray().Key("clocks").BeginArray();
    for (const trace::ClockFit& fit : step.clocks) {
      json.BeginObject().Key("offset_us").Number(fit.offset_ns / 1e3);
      json.Key("drift").Number(fit.drift).EndObject();
    }
    json.EndArray().Key("critical_tasks").BeginArray();
    for (const trace::PathPiece& piece : analysis.critical) {
      if (piece.kind != trace::PathPiece::Kind::kTask) continue;
      json.String(DescribeTask(graph, piece.task));
    }
    return json.EndArray().EndObject().text() + "\n";
  }

  int64_t iteration_ = -1;
  std::string out_{};
  std::string graph_{};
  std::string trace_{};
  std::string report_{};
  studies::SearchOptions search_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeTraceCommand() {
  return std::make_unique<TraceCommand>();
}

}  // namespace pipeloom::cli
