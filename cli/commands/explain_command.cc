// `pipeloom explain`: describes a plan in words and draws it with characters.
#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/overloaded.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "cli/input/partition_source.h"
#include "cli/input/plan_file.h"
#include "cli/input/plan_source.h"
#include "cli/input/planning_flags.h"
#include "cli/report/explain_words.h"
#include "cli/report/timeline_text.h"
#include "emulator/step/emulate_step.h"
#include "formats/text/json_writer.h"
#include "planner/strategy.h"
#include "studies/job/launch_times.h"
#include "studies/whatif/suggestions.h"
#include "studies/whatif/whatif_run.h"
#include "trace/trace_analysis.h"
#include "trace/trace_summary.h"

namespace pipeloom::cli {
namespace {

constexpr const char* kPassNames[trace::kNumPasses] = {"forward", "backward",
                                                       "weight gradient"};

std::string Share(Duration part, Duration whole) {
  return whole > kZero ? FormatPercent(ToSeconds(part) / ToSeconds(whole))
                       : std::string("-");
}

std::string Module(const StageGraph& graph, ModuleId m) {
  return graph.module_names()[static_cast<size_t>(m.value())];
}

// Returns the words for an instruction, such as
// "compute task 3 (F backbone ...)".
std::string Words(const StageGraph& graph, const Instruction& instruction) {
  const auto edge = [&](absl::string_view verb, EdgeId e, bool to) {
    const Dependency& d = graph.edge(e);
    return absl::StrFormat("%s edge %d %s rank %d (%s)", std::string(verb),
                           e.value(), to ? "to" : "from",
                           graph.task(to ? d.to : d.from).rank.value(),
                           FormatBytes(d.payload));
  };
  const auto task = [&](absl::string_view verb, TaskId t) {
    return absl::StrCat(verb, " ", DescribeTask(graph, t));
  };
  return std::visit(
      Overloaded{
          [&](const Compute& i) { return task("compute", i.task); },
          [&](const Send& i) { return edge("send", i.edge, true); },
          [&](const Recv& i) { return edge("receive", i.edge, false); },
          [&](const WaitRecv& i) { return edge("wait for", i.edge, false); },
          [&](const WaitSend& i) {
            return edge("wait until sent:", i.edge, true);
          },
          [&](const Free& i) {
            return absl::StrFormat("free edge %d", i.edge.value());
          },
          [&](const Offload& i) { return task("offload", i.task); },
          [&](const Fetch& i) { return task("fetch", i.task); },
          [&](const ReduceGradients&) {
            return std::string("reduce gradients over the replicas");
          },
          [&](const OptimizerStep&) { return std::string("optimizer step"); }},
      instruction);
}

// Returns the arguments of `whatif` for this case alone, such as
// "--set a=1 --set b=2"; empty if there are none.
std::string ArgumentsOf(const studies::WhatIfCase& tried) {
  if (tried.video_factor != 1 || tried.slow_rank >= 0 || tried.recompute_all)
    return "";
  std::string text;
  for (const formats::JobOverride& change : tried.changes) {
    absl::StrAppend(&text, text.empty() ? "" : " ", "--set '", change.path, "=",
                    change.value, "'");
  }
  return text;
}

class ExplainCommand : public Command {
 public:
  CommandText text() const override {
    return {"explain", "PLAN | JOB --batch FILE [options]",
            "a plan in words and as a timeline of characters",
            "Says what the plan does: the timeline by rank, where the time "
            "goes and why ranks are idle, the chain of tasks that the step "
            "time follows from, why a microbatch waits, what fills each rank's "
            "memory at its peak, and the changes that would help most. With "
            "--rank also the rank's instructions, in order.\n\n"
            "With JOB it is the plan that `pipeloom plan` makes with the same "
            "options, of 32 evaluations unless told otherwise. Every change is "
            "tried: planned anew and emulated, and shown with the command that "
            "does it: other layouts, microbatches, sub-microbatches, memory, "
            "recomputation, links. "
            "With PLAN the same programs are emulated with other times."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags = {
        {"rank", &rank_, "R", "one rank, with its instructions", {}, 0},
        {"microbatch",
         &microbatch_,
         "M",
         "the microbatch whose waits are told; default: that which waits "
         "longest",
         {},
         0},
        {"width", &width_, "N", "characters of the timeline", {}, 10, 1000},
        {"suggestions",
         &suggestions_,
         "N",
         "how many changes to show",
         {},
         0,
         20}};
    AppendPlanningFlags(&planning_, false, &flags);
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string path,
                              OneArgument(args, "PLAN or JOB"));
    std::vector<studies::Suggestion> suggestions;
    PIPELOOM_ASSIGN_OR_RETURN(const ExecutionPlan plan,
                              PlanOf(path, context, &suggestions));
    const StageGraph& graph = plan.graph;
    if (rank_ && *rank_ >= graph.num_ranks()) {
      return UsageError(absl::StrFormat("--rank %d: the plan has %d ranks",
                                        *rank_, graph.num_ranks()));
    }
    int64_t microbatches = 0;
    for (const Task& task : graph.tasks()) {
      microbatches =
          std::max<int64_t>(microbatches, task.microbatch.value() + 1);
    }
    if (microbatch_ && *microbatch_ >= microbatches) {
      return UsageError(
          absl::StrFormat("--microbatch %d: the plan has %d microbatches, "
                          "counted from 0",
                          *microbatch_, microbatches));
    }
    const RankId only =
        rank_ ? RankId(static_cast<int32_t>(*rank_)) : RankId::None();
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                              emulator::EmulateStep(plan));
    const trace::TraceSummary summary = trace::Summarize(graph, trace);
    const trace::TraceAnalysis analysis = trace::Analyze(plan, trace);
    if (format_ == "json") {
      context.print(Json(plan, trace, analysis, suggestions));
      return absl::OkStatus();
    }
    context.print(Opening(plan, trace, summary));
    context.print(absl::StrCat(
        "\nTimeline\n\n",
        TimelineText(graph, trace, static_cast<int>(width_), only)));
    context.print(TimeWords(graph, trace, summary));
    context.print(BubbleWords(graph, trace, analysis, only));
    context.print(CriticalWords(graph, trace));
    context.print(
        WaitWords(graph, analysis,
                  microbatch_ ? MicrobatchId(static_cast<int32_t>(*microbatch_))
                              : MicrobatchId::None()));
    if (trace::HasMemory(trace)) {
      context.print(MemoryWords(graph, summary, only));
      context.print(MemoryLimitWords(graph, trace, analysis));
    } else {
      context.print(
          "\nThe plan does not say how much memory its tasks need.\n");
    }
    context.print(SuggestionWords(path, trace, suggestions));
    if (rank_) context.print(InstructionWords(plan, trace, only));
    return absl::OkStatus();
  }

 private:
  // Returns the plan, and finds changes that would make it faster.
  absl::StatusOr<ExecutionPlan> PlanOf(
      const std::string& path, const Context& context,
      std::vector<studies::Suggestion>* suggestions) {
    const auto most = static_cast<size_t>(suggestions_);
    PIPELOOM_ASSIGN_OR_RETURN(const bool is_plan,
                              IsPlanFile(path, planning_.job));
    if (is_plan) {
      const std::string given = PlanningFlagsGiven(planning_);
      if (!given.empty()) {
        return UsageError(absl::StrCat("a plan takes no ", given, ": ", path,
                                       " is planned already; give JOB --batch "
                                       "FILE"));
      }
      PIPELOOM_ASSIGN_OR_RETURN(ExecutionPlan plan, ReadPlan(path));
      if (most > 0) {
        PIPELOOM_ASSIGN_OR_RETURN(*suggestions,
                                  studies::SuggestForPlan(plan, most));
      }
      return plan;
    }
    studies::SearchOptions& search = planning_.search;
    if (!search.evaluations && !search.deadline) search.evaluations = 32;
    // A word of PIPELOOM_PARTITION counts as that of the option, as for `plan`.
    if (planning_.partition.source.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(const std::string source, SourceOf("", ""));
      if (source != "rule") planning_.partition.source = source;
    }
    PIPELOOM_ASSIGN_OR_RETURN(const WhatIfBase base,
                              ReadWhatIfBase(path, planning_, context));
    const studies::WhatIfInput& input = base.input;
    dp_ = input.base.job.parallel.dp;
    PIPELOOM_ASSIGN_OR_RETURN(const std::optional<UsualPartition> usual,
                              UsualPartitionOf(input.base, planning_, context));
    studies::WhatIfInput own = input;
    if (usual.has_value()) {
      own.partition = studies::OnPartition(usual->partition, input.base.job);
      kept_file_ = usual->file;
    }
    studies::WhatIfCase now;
    now.changes = base.changes;
    studies::PlannedStep planned;
    PIPELOOM_ASSIGN_OR_RETURN(
        const studies::WhatIfOutcome outcome,
        studies::RunCase(own, now, StudyContextOf(context), &planned));
    if (!outcome.ok()) return absl::FailedPreconditionError(outcome.error);
    if (most > 0) {
      const int32_t threads =
          search.threads > 0 ? static_cast<int32_t>(search.threads)
                             : static_cast<int32_t>(std::max(
                                   1u, std::thread::hardware_concurrency()));
      PIPELOOM_ASSIGN_OR_RETURN(
          *suggestions,
          studies::SuggestForJob(
              input, now.changes, outcome,
              // A partition without a file has no command that plans on it.
              kept_file_.empty() ? nullptr : &usual->partition, most, threads,
              StudyContextOf(context)));
    }
    together_ = planned.together;
    const ExecutionPlan& plan = planned.slowest().plan;
    PIPELOOM_ASSIGN_OR_RETURN(const JobSpec job, input.job.With(base.changes));
    const auto operators = studies::CostsOf(input.base);
    for (const std::string& note : studies::LaunchNotes(
             job, planned.slowest().microbatches, operators.get())) {
      context.warn(absl::StrCat("note: ", note));
    }
    for (const std::string& note :
         studies::GraphNotes(job, planned.slowest().microbatches)) {
      context.warn(absl::StrCat("note: ", note));
    }
    return plan;
  }

  // Returns how many replicas of a case --replicas plans: at most those that it
  // has.
  int64_t ReplicasOf(const studies::WhatIfCase& tried) const {
    int64_t most = dp_;
    for (const formats::JobOverride& change : tried.changes) {
      int64_t dp = 0;
      if (change.path == "parallel.dp" && absl::SimpleAtoi(change.value, &dp)) {
        most = dp;
      }
    }
    return std::min(planning_.job.replicas, most);
  }

  // Returns the `whatif` command that tries this suggestion alone.
  std::string CommandOf(const std::string& job,
                        const studies::Suggestion& suggestion) const {
    std::string text =
        absl::StrCat("pipeloom whatif ", job, " --batch ", planning_.job.batch,
                     " ", ArgumentsOf(suggestion.change));
    PlanningFlags flags = planning_;
    if (suggestion.on_given) flags.partition.source = kept_file_;
    if (const std::string more = PlanningArguments(flags); !more.empty()) {
      absl::StrAppend(&text, " ", more);
    }
    if (planning_.job.replicas > 0) {
      absl::StrAppend(&text, " --replicas ", ReplicasOf(suggestion.change));
    }
    return text;
  }

  std::string SuggestionWords(
      const std::string& job, const StepTrace& trace,
      const std::vector<studies::Suggestion>& found) const {
    if (suggestions_ == 0) return "";
    if (found.empty()) return "\nNo change that was tried helps.\n";
    std::string text =
        planning_.job.batch.empty()
            ? "\nWhat would help most, emulated with the same programs:\n"
            : "\nWhat would help most, each planned anew and emulated:\n";
    int number = 0;
    for (const studies::Suggestion& s : found) {
      absl::StrAppendFormat(&text, "\n%d. %s: %s instead of %s, %s less\n",
                            ++number, s.label, FormatDuration(s.step_time),
                            FormatDuration(s.step_time + s.gain),
                            Share(s.gain, StepTime(trace)));
      if (!planning_.job.batch.empty()) {
        absl::StrAppend(&text, "   ", CommandOf(job, s), "\n");
      }
    }
    return text;
  }

  std::string Json(const ExecutionPlan& plan, const StepTrace& trace,
                   const trace::TraceAnalysis& analysis,
                   const std::vector<studies::Suggestion>& found) const {
    formats::JsonWriter json(true);
    json.BeginObject().Key("job").String(plan.job);
    json.Key("strategy").String(plan.schedule);
    json.Key("schedule").String(plan.schedule);
    json.Key("step_time_us").Micros(StepTime(trace));
    json.Key("ranks").BeginArray();
    for (const RankId r : plan.graph.rank_ids()) {
      json.BeginObject().Key("rank").Int(r.value());
      for (int k = 0; k < trace::kNumBubbleKinds; ++k) {
        json.Key(absl::StrCat(
            trace::BubbleName(static_cast<trace::BubbleKind>(k)), "_us"));
        json.Micros(analysis.bubbles[r][static_cast<size_t>(k)]);
      }
      json.EndObject();
    }
    json.EndArray().Key("suggestions").BeginArray();
    for (const studies::Suggestion& s : found) {
      json.BeginObject().Key("label").String(s.label);
      json.Key("step_time_us").Micros(s.step_time);
      json.Key("gain_us").Micros(s.gain).Key("set").BeginArray();
      for (const formats::JobOverride& change : s.change.changes) {
        json.String(absl::StrCat(change.path, "=", change.value));
      }
      json.EndArray();
      if (s.on_given) json.Key("partition").String(kept_file_);
      json.EndObject();
    }
    return json.EndArray().EndObject().text() + "\n";
  }

  // Returns the time of the step, with waits for other replicas.
  Duration StepTime(const StepTrace& trace) const {
    return std::max(together_, trace.step_time());
  }

  std::string Opening(const ExecutionPlan& plan, const StepTrace& trace,
                      const trace::TraceSummary& summary) const {
    const StageGraph& graph = plan.graph;
    int32_t num_microbatches = 0;
    for (const Task& task : graph.tasks()) {
      num_microbatches =
          std::max(num_microbatches, task.microbatch.value() + 1);
    }
    std::string modules;
    for (size_t m = 0; m < graph.module_names().size(); ++m) {
      absl::StrAppend(&modules, m == 0 ? "" : ", ", graph.module_names()[m]);
    }
    const Duration step_time = trace.step_time();
    std::string text = absl::StrFormat(
        "%s, step %d, replica %d, strategy %s: %d tasks of %d microbatches "
        "through %s on %d ranks.",
        plan.job, plan.step, plan.replica, plan.schedule, graph.num_tasks(),
        num_microbatches, modules, graph.num_ranks());
    text = absl::StrCat(WrapText(text, 0), "\n\n");
    absl::StrAppendFormat(
        &text, "The step takes %s; ranks compute %s of it on average.\n",
        FormatDuration(step_time),
        FormatPercent(1 - summary.bubble_ratio - summary.epilogue_ratio));
    if (plan.lower_bound > kZero) {
      absl::StrAppendFormat(
          &text,
          "No schedule of these stages takes less than %s; this one is "
          "%s above.\n",
          FormatDuration(plan.lower_bound),
          FormatPercent(ToSeconds(step_time) / ToSeconds(plan.lower_bound) - 1,
                        2));
    }
    if (together_ > step_time) {
      absl::StrAppendFormat(
          &text,
          "That is without waits for replicas that it meets within passes; "
          "with them the step takes %s or more.\n",
          FormatDuration(together_));
    }
    if (plan.peak_flops_per_second > 0) {
      absl::StrAppendFormat(&text, "MFU is %s of the bf16 peak.\n",
                            FormatPercent(Mfu(plan, step_time)));
    }
    return text;
  }

  static std::string TimeWords(const StageGraph& graph, const StepTrace& trace,
                               const trace::TraceSummary& summary) {
    const Duration rank_time = trace.step_time() * graph.num_ranks();
    Table table({"where rank time goes", "share"});
    for (const ModuleId m : summary.modules.ids()) {
      for (int p = 0; p < trace::kNumPasses; ++p) {
        const Duration d = summary.modules[m].pass[p];
        if (d == kZero) continue;
        table.AddRow({absl::StrCat(Module(graph, m), " ", kPassNames[p]),
                      Share(d, rank_time)});
      }
    }
    Duration warm_up{}, stalls{}, drain{}, epilogue{};
    for (const trace::RankSummary& rank : summary.ranks) {
      warm_up += rank.warm_up;
      stalls += rank.stalls;
      drain += rank.drain;
      epilogue += rank.epilogue;
    }
    table.AddRow(
        {"gradient reduction and optimizer", Share(epilogue, rank_time)});
    table.AddRow(
        {"idle before a rank's first task", Share(warm_up, rank_time)});
    table.AddRow({"idle between tasks", Share(stalls, rank_time)});
    table.AddRow({"idle after a rank's last task", Share(drain, rank_time)});
    return absl::StrCat("\n", table.ToString());
  }

  static std::string CriticalWords(const StageGraph& graph,
                                   const StepTrace& trace) {
    const trace::CriticalPath path = trace::FindCriticalPath(graph, trace);
    if (path.tasks.empty()) return "";
    const Duration step_time = trace.step_time();
    Table table({absl::StrFormat("critical path: %d tasks, %d rank changes",
                                 path.tasks.size(), path.rank_changes),
                 "time", "share"});
    for (const ModuleId m : path.compute.ids()) {
      for (int p = 0; p < trace::kNumPasses; ++p) {
        const Duration d = path.compute[m].pass[p];
        if (d == kZero) continue;
        table.AddRow({absl::StrCat(Module(graph, m), " ", kPassNames[p]),
                      FormatDuration(d), Share(d, step_time)});
      }
    }
    for (const auto& [name, d] :
         {std::pair("transfers", path.transfer),
          std::pair("gradient reduction and optimizer", path.epilogue),
          std::pair("other waiting", path.other)}) {
      if (d == kZero) continue;
      table.AddRow({name, FormatDuration(d), Share(d, step_time)});
    }
    return absl::StrCat("\n", table.ToString(), "It begins with ",
                        DescribeTask(graph, path.tasks.front()),
                        "\nand ends with ",
                        DescribeTask(graph, path.tasks.back()), ".\n");
  }

  static std::string MemoryWords(const StageGraph& graph,
                                 const trace::TraceSummary& summary,
                                 RankId only) {
    Table table({"peak memory", "at", "total", "limit", "weights", "gradients",
                 "optimizer", "activations", "received", "sent", "overhead"});
    const auto item = [](const MemoryPeak& peak, MemoryItem i) {
      return FormatBytes(peak.items[static_cast<int>(i)]);
    };
    for (const RankId r : graph.rank_ids()) {
      if (!only.is_none() && r != only) continue;
      const MemoryPeak& peak = summary.ranks[r].peak;
      const Bytes limit = graph.rank(r).memory.limit;
      table.AddRow(
          {absl::StrCat("rank ", r.value()),
           FormatDuration(peak.at - kStepStart), FormatBytes(peak.total),
           limit > Bytes(0) ? FormatBytes(limit) : "none",
           item(peak, MemoryItem::kWeights), item(peak, MemoryItem::kGradients),
           item(peak, MemoryItem::kOptimizer),
           item(peak, MemoryItem::kActivations),
           item(peak, MemoryItem::kReceived), item(peak, MemoryItem::kSent),
           item(peak, MemoryItem::kOverhead)});
    }
    return absl::StrCat("\n", table.ToString());
  }

  static std::string InstructionWords(const ExecutionPlan& plan,
                                      const StepTrace& trace, RankId rank) {
    const auto spans = trace::TaskSpans(plan.graph, trace);
    std::string text = absl::StrFormat(
        "\nInstructions of rank %d (times of tasks from the step's start)\n\n",
        rank.value());
    size_t index = 0;
    for (const Instruction& instruction : plan.programs[rank]) {
      absl::StrAppendFormat(&text, "%5d  %s", index++,
                            Words(plan.graph, instruction));
      if (const Compute* compute = std::get_if<Compute>(&instruction);
          compute != nullptr && spans[compute->task] != nullptr) {
        const Span& span = *spans[compute->task];
        absl::StrAppend(&text, ": ", FormatDuration(span.end - span.start),
                        " at ", FormatDuration(span.start - kStepStart));
      }
      text += '\n';
    }
    return text;
  }

  // The time of the step together with replicas that meet; 0: none do.
  Duration together_{};
  // Replicas of the job as it is.
  int32_t dp_ = 1;
  // The file of the partition that the job is planned on; empty if `plan` would
  // not search one, or if it is not kept.
  std::string kept_file_{};
  std::optional<int64_t> rank_{};
  std::optional<int64_t> microbatch_{};
  int64_t suggestions_ = 3;
  PlanningFlags planning_{};
  std::string format_ = "table";
  int64_t width_ = 72;
};

}  // namespace

std::unique_ptr<Command> MakeExplainCommand() {
  return std::make_unique<ExplainCommand>();
}

}  // namespace pipeloom::cli
