// `pipeloom search`: schedules a bare TaskGraph.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "cli/console/table.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "cli/input/robust_flags.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_writer.h"
#include "planner/bounds/lower_bound.h"
#include "planner/search/robust_search.h"
#include "planner/search/search_graph.h"

namespace pipeloom::cli {
namespace {

// Returns the answer of docs/plan_format.md, where `start_us` is ordered by
// increasing external id.
std::string Answer(const formats::LoadedGraph& loaded,
                   const planner::SearchResult& result, Duration search_time,
                   const std::optional<planner::RobustResult>& robust) {
  const StageGraph& graph = loaded.graph;
  formats::JsonWriter json(true);
  json.BeginObject();
  json.Key("makespan_us").Micros(result.schedule.makespan());
  json.Key("lower_bound_us").Micros(result.lower_bound);
  json.Key("bound_source").String(result.bound_source);
  json.Key("order").BeginArray();
  for (const auto& tasks : result.schedule.order) {
    json.BeginArray();
    for (const TaskId t : tasks) json.Int(loaded.external_id[t]);
    json.EndArray();
  }
  json.EndArray();
  std::vector<TaskId> by_external_id;
  for (const TaskId t : graph.task_ids()) by_external_id.push_back(t);
  std::sort(by_external_id.begin(), by_external_id.end(),
            [&](TaskId a, TaskId b) {
              return loaded.external_id[a] < loaded.external_id[b];
            });
  json.Key("start_us").BeginArray();
  for (const TaskId t : by_external_id) {
    json.Micros(result.schedule.start[t] - kStepStart);
  }
  json.EndArray().Key("peak_bytes").BeginArray();
  for (const Bytes peak : result.schedule.peak) json.Count(peak);
  json.EndArray().Key("search_us").Micros(search_time);
  json.Key("evaluations").Int(result.evaluations);
  json.Key("proven_optimal").Bool(result.proven_optimal);
  if (robust) WriteRobust(robust->chosen, robust->nominal, &json);
  return json.EndObject().text() + "\n";
}

class SearchCommand : public Command {
 public:
  CommandText text() const override {
    return {"search", "GRAPH [options]",
            "schedule a bare task graph under memory limits",
            "Reads a TaskGraph (JSON: ranks, tasks, edges), searches an order "
            "of each rank's tasks and prints the result; --out writes the "
            "answer as JSON: order by rank, start times by task in increasing "
            "id, peak memory by rank, and a lower bound that no schedule "
            "beats. The search ends at the deadline (100ms if nothing is "
            "asked for), after the evaluations, or when the bound is "
            "reached."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags = {
        {"graph", &graph_, "FILE", "the same as the argument GRAPH"},
        OutputFlag("out", &out_, "write the answer as JSON")};
    AppendSearchFlags(&search_flags_, &flags,
                      "none with --evaluations, else 100ms");
    AppendRobustFlags(&robust_flags_, &flags);
    flags.push_back({"bound",
                     &bound_,
                     "HOW",
                     "the lower bound: strong takes as long as the search once "
                     "more",
                     {"cheap", "strong"}});
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (graph_.empty() && args.size() == 1) graph_ = args[0];
    if (graph_.empty())
      return UsageError("GRAPH is missing: the file of a task graph");
    if (!args.empty() && args[0] != graph_) {
      return UsageError(absl::StrCat("unexpected argument \"", args[0], "\""));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(graph_));
    if (IsPlan(text)) {
      return absl::InvalidArgumentError(absl::StrCat(
          graph_, " is a plan; `pipeloom export ", graph_,
          " --to graph-json --out FILE` makes a task graph of it"));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const formats::LoadedGraph loaded,
                              formats::ParseTaskGraph(text, graph_));
    const studies::SearchSettings settings =
        studies::Settle(search_flags_, SearchSpec());
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    absl::StatusOr<planner::SearchResult> found;
    {
      const Progress progress(context, "searching", 1);
      const planner::SearchBudget budget =
          studies::StartBudget(settings, context.stop);
      const auto robust = DisturbancesOf(robust_flags_, settings.seed);
      found = planner::SearchGraph(
          loaded.graph, settings.seed,
          robust ? budget.Until(1 - kRobustShare) : budget);
      if (found.ok() && robust) {
        PIPELOOM_RETURN_IF_ERROR(ChooseRobust(loaded.graph, *robust,
                                              settings.seed, budget, &*found));
      }
    }
    if (!found.ok()) return found.status();
    if (bound_ == "strong" && !found->proven_optimal) {
      // The bound gets the same budget as the search.
      const planner::NamedBound bound = planner::StrongLowerBound(
          planner::FlatGraph(loaded.graph),
          studies::StartBudget(settings, context.stop));
      if (Nanoseconds(bound.time) > found->lower_bound) {
        found->lower_bound = Nanoseconds(bound.time);
        found->bound_source = bound.source;
      }
      found->proven_optimal = found->schedule.step_time() == found->lower_bound;
    }
    const planner::SearchResult& result = *found;
    const auto search_time =
        std::chrono::duration_cast<Duration>(Clock::now() - begin);
    PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(loaded.graph, result.schedule));
    const std::string answer = Answer(loaded, result, search_time, robust_);
    if (!out_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(out_, answer));
    }
    // The best until an interrupt is an answer too.
    const absl::Status end = context.stop.stop_requested()
                                 ? absl::CancelledError("stopped")
                                 : absl::OkStatus();
    if (format_ == "json") {
      context.print(answer);
      return end;
    }
    PrintTable(loaded.graph, result, search_time, context);
    if (robust_) {
      context.print(
          absl::StrCat("\n", RobustText(robust_->chosen, robust_->nominal)));
    }
    if (!out_.empty()) context.print(absl::StrCat("wrote ", out_, "\n"));
    return end;
  }

 private:
  // Replaces the schedule by the best one under disturbances.
  absl::Status ChooseRobust(const StageGraph& graph,
                            const planner::Disturbances& disturbances,
                            uint64_t seed, planner::SearchBudget budget,
                            planner::SearchResult* result) {
    budget.max_evaluations =
        std::max<int64_t>(1, budget.max_evaluations - result->evaluations);
    PIPELOOM_ASSIGN_OR_RETURN(
        robust_, planner::RobustSearch(graph, result->schedule.order,
                                       disturbances, seed, budget));
    PIPELOOM_ASSIGN_OR_RETURN(result->schedule,
                              TimeSchedule(graph, robust_->order));
    result->evaluations += robust_->evaluations;
    result->proven_optimal =
        result->schedule.step_time() == result->lower_bound;
    return absl::OkStatus();
  }

  static void PrintTable(const StageGraph& graph,
                         const planner::SearchResult& result,
                         Duration search_time, const Context& context) {
    context.print(absl::StrFormat(
        "%s: %d tasks on %d ranks\n\n"
        "makespan     %s%s\n"
        "lower bound  %s (gap %s)\n"
        "bubble       %s\n"
        "search       %s, %d evaluations\n\n",
        graph.name(), graph.num_tasks(), graph.num_ranks(),
        FormatDuration(result.schedule.makespan()),
        result.proven_optimal ? ", proven optimal" : "",
        FormatDuration(result.lower_bound),
        FormatPercent(result.gap_ratio(), 2),
        // Shares of the makespan, which ends before the epilogues.
        FormatPercent(BubbleRatio(graph, result.schedule.makespan()) +
                      EpilogueRatio(graph, result.schedule.makespan())),
        FormatDuration(search_time), result.evaluations));
    Table table({"rank", "tasks", "busy", "peak memory", "limit"});
    for (const RankId r : graph.rank_ids()) {
      Duration busy{};
      for (const TaskId t : graph.tasks_of(r)) busy += graph.task(t).duration;
      const Bytes limit = graph.rank(r).memory.limit;
      const Duration makespan = result.schedule.makespan();
      table.AddRow({absl::StrCat("rank ", r.value()),
                    absl::StrCat(graph.tasks_of(r).size()),
                    makespan > kZero
                        ? FormatPercent(ToSeconds(busy) / ToSeconds(makespan))
                        : "-",
                    FormatBytes(result.schedule.peak[r]),
                    limit > Bytes(0) ? FormatBytes(limit) : "none"});
    }
    context.print(table.ToString());
  }

  std::string graph_{};
  std::string out_{};
  studies::SearchOptions search_flags_{};
  RobustFlags robust_flags_{};
  std::optional<planner::RobustResult> robust_{};
  std::string bound_ = "cheap";
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeSearchCommand() {
  return std::make_unique<SearchCommand>();
}

}  // namespace pipeloom::cli
