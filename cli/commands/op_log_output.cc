#include "cli/commands/op_log_output.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "cli/console/table.h"
#include "cli/input/job_input.h"
#include "formats/text/json_writer.h"
#include "ir/plan/schedule.h"
#include "planner/search/search_graph.h"
#include "trace/oplog/logged_pipeline.h"
#include "trace/oplog/op_log.h"
#include "trace/oplog/op_replay.h"
#include "trace/oplog/slowdown.h"

namespace pipeloom::cli {
namespace {

using trace::OpKind;
using trace::Slowdown;

// The pipelines of one step, one a replica: the slowest counts.
struct Order {
  int64_t step = 0;
  Duration logged{};
  Duration found{};
};

absl::StatusOr<Order> SearchOrder(const trace::OpLog& log,
                                  const OpLogRequest& request,
                                  const Context& context) {
  const auto count = static_cast<int64_t>(log.steps.size());
  if (request.iteration >= count) {
    return UsageError(
        absl::StrFormat("--iteration %d: the log has %d steps, from 0",
                        request.iteration, count));
  }
  const trace::OpLogStep& step = log.steps[static_cast<size_t>(
      request.iteration < 0 ? count - 1 : request.iteration)];
  PIPELOOM_ASSIGN_OR_RETURN(const trace::OpReplay replay,
                            trace::OpReplay::Create(step));
  const studies::SearchSettings settings =
      studies::Settle(request.search, SearchSpec());
  Order order{.step = step.number};
  Progress progress(context, "searching", step.replicas);
  for (int32_t r = 0; r < step.replicas; ++r) {
    PIPELOOM_ASSIGN_OR_RETURN(const trace::LoggedPipeline pipeline,
                              trace::PipelineOf(replay, r, step.stages));
    PIPELOOM_ASSIGN_OR_RETURN(const Schedule logged,
                              TimeSchedule(pipeline.graph, pipeline.order));
    PIPELOOM_ASSIGN_OR_RETURN(
        const planner::SearchResult found,
        planner::SearchGraph(pipeline.graph, settings.seed,
                             studies::StartBudget(settings, context.stop)));
    order.logged = std::max(order.logged, logged.step_time());
    order.found = std::max(
        order.found, std::min(logged.step_time(), found.schedule.step_time()));
    progress.Set(r + 1, "");
  }
  return order;
}

std::string Times(double ratio) { return absl::StrFormat("%.3fx", ratio); }

std::string Words(const std::string& path, const trace::OpLog& log,
                  const Slowdown& s, const std::optional<Order>& order) {
  const trace::OpLogStep& first = log.steps.front();
  std::string text = absl::StrFormat(
      "%s: %d steps, %d replicas of %d stages\n\n"
      "measured  %s a step\n"
      "replayed  %s (off by %.2f %% in the mean, %.2f %% at most; %.2f %% "
      "without the pauses between operations)\n"
      "slowdown  %s against operations that are all even\n"
      "cause     %s\n\n",
      path, log.steps.size(), first.replicas, first.stages,
      FormatDuration(s.measured), FormatDuration(s.replayed),
      100 * s.mean_error, 100 * s.worst_error, 100 * s.error_without_gaps,
      Times(s.whole), trace::CauseOf(s));
  Table table({"operations of", "slowdown alone", "explain"});
  const auto add = [&](const std::string& name, const Slowdown::Part& part) {
    table.AddRow({name, Times(part.alone), FormatPercent(part.explains)});
  };
  for (size_t k = 0; k < s.by_kind.size(); ++k) {
    const Slowdown::Part& part = s.by_kind[k];
    // Kinds that make less than a tenth of a percent are left out.
    if (part.alone < 1.001 && part.explains < 0.005) continue;
    add(std::string(trace::OpName(static_cast<OpKind>(k))), part);
  }
  for (size_t i = 0; i < s.by_stage.size(); ++i) {
    add(absl::StrCat("stage ", i), s.by_stage[i]);
  }
  for (size_t i = 0; i < s.by_replica.size(); ++i) {
    add(absl::StrCat("replica ", i), s.by_replica[i]);
  }
  add(absl::StrFormat("stage %d of replica %d", s.worst_stage, s.worst_replica),
      s.worst_worker);
  absl::StrAppend(&text, table.ToString());
  absl::StrAppendFormat(
      &text,
      "\nforward and backward times of a microbatch correlate by %.2f\n\n",
      s.forward_backward_correlation);
  Table changes({"if", "step", "saves"});
  const auto what_if = [&](const std::string& name, double ratio) {
    changes.AddRow({name,
                    FormatDuration(Seconds(ToSeconds(s.replayed) * ratio)),
                    FormatPercent(1 - ratio)});
  };
  what_if("all stages took their mean", s.even_stages);
  what_if("all microbatches of a stage took their mean", s.even_microbatches);
  what_if("both", s.even_both);
  absl::StrAppend(&text, changes.ToString());
  if (order.has_value()) {
    absl::StrAppendFormat(
        &text,
        "\nforwards and backwards of step %d: %s in the order of the log, %s "
        "in "
        "the best found (%s less)\n",
        order->step, FormatDuration(order->logged),
        FormatDuration(order->found),
        FormatPercent(1 - ToSeconds(order->found) / ToSeconds(order->logged)));
  }
  return text;
}

std::string Json(const trace::OpLog& log, const Slowdown& s,
                 const std::optional<Order>& order) {
  formats::JsonWriter json(true);
  json.BeginObject();
  json.Key("steps").Int(static_cast<int64_t>(log.steps.size()));
  json.Key("replicas").Int(log.steps.front().replicas);
  json.Key("stages").Int(log.steps.front().stages);
  json.Key("measured_us").Micros(s.measured);
  json.Key("replayed_us").Micros(s.replayed);
  json.Key("mean_error_ratio").Number(s.mean_error);
  json.Key("worst_error_ratio").Number(s.worst_error);
  json.Key("error_without_pauses_ratio").Number(s.error_without_gaps);
  json.Key("slowdown").Number(s.whole);
  json.Key("cause").String(trace::CauseOf(s));
  const auto part = [&](const Slowdown::Part& p) {
    json.Key("alone").Number(p.alone).Key("explains").Number(p.explains);
    json.EndObject();
  };
  json.Key("operations").BeginArray();
  for (size_t k = 0; k < s.by_kind.size(); ++k) {
    json.BeginObject().Key("op").String(
        std::string(trace::OpName(static_cast<OpKind>(k))));
    part(s.by_kind[k]);
  }
  json.EndArray().Key("by_stage").BeginArray();
  for (const Slowdown::Part& p : s.by_stage) {
    json.BeginObject();
    part(p);
  }
  json.EndArray().Key("by_replica").BeginArray();
  for (const Slowdown::Part& p : s.by_replica) {
    json.BeginObject();
    part(p);
  }
  json.EndArray().Key("worst_worker").BeginObject();
  json.Key("replica").Int(s.worst_replica).Key("stage").Int(s.worst_stage);
  part(s.worst_worker);
  json.Key("forward_backward_correlation")
      .Number(s.forward_backward_correlation);
  json.Key("even_stages_ratio").Number(s.even_stages);
  json.Key("even_microbatches_ratio").Number(s.even_microbatches);
  json.Key("even_both_ratio").Number(s.even_both);
  if (order.has_value()) {
    json.Key("order").BeginObject().Key("step").Int(order->step);
    json.Key("logged_us").Micros(order->logged);
    json.Key("found_us").Micros(order->found).EndObject();
  }
  return json.EndObject().text() + "\n";
}

}  // namespace

absl::Status PrintOpLog(const OpLogRequest& request, const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(request.path));
  PIPELOOM_ASSIGN_OR_RETURN(const trace::OpLog log,
                            trace::ParseOpLog(text, request.path));
  PIPELOOM_ASSIGN_OR_RETURN(const Slowdown slowdown,
                            trace::AnalyzeSlowdown(log));
  std::optional<Order> order;
  if (request.search.evaluations || request.search.deadline) {
    PIPELOOM_ASSIGN_OR_RETURN(order, SearchOrder(log, request, context));
  }
  context.print(request.json ? Json(log, slowdown, order)
                             : Words(request.path, log, slowdown, order));
  // The best until an interrupt is an answer too.
  return context.stop.stop_requested() ? absl::CancelledError("stopped")
                                       : absl::OkStatus();
}

}  // namespace pipeloom::cli
