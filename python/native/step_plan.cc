#include "python/native/step_plan.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/table.h"
#include "cli/input/plan_file.h"
#include "cli/report/report.h"
#include "emulator/step/emulate_step.h"
#include "trace/trace_summary.h"

namespace pipeloom::python {
namespace {

// Appends one number to a column.
void Append(int64_t value, Column* column) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  column->second.append(bytes, sizeof value);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StepPlan>> ReadStepPlan(
    absl::string_view content, const std::string& name) {
  auto read = std::make_shared<StepPlan>();
  PIPELOOM_ASSIGN_OR_RETURN(read->result.plan,
                            cli::ParsePlanFile(content, name));
  PIPELOOM_ASSIGN_OR_RETURN(read->result.predicted,
                            emulator::EmulateStep(read->result.plan));
  read->result.lower_bound = read->result.plan.lower_bound;
  read->result.bound_source = "";
  return read;
}

std::vector<Column> TaskColumns(const StepPlan& plan) {
  const StageGraph& graph = plan.result.plan.graph;
  const auto spans = trace::TaskSpans(graph, plan.result.predicted);
  std::vector<Column> columns;
  const auto add = [&](const char* name, auto value_of) {
    Column& column = columns.emplace_back(name, "");
    column.second.reserve(sizeof(int64_t) *
                          static_cast<size_t>(graph.num_tasks()));
    for (const TaskId t : graph.task_ids()) {
      Append(static_cast<int64_t>(value_of(t, graph.task(t))), &column);
    }
  };
  using Id = TaskId;
  add("rank", [](Id, const Task& t) { return t.rank.value(); });
  add("kind", [](Id, const Task& t) { return static_cast<int>(t.pass); });
  add("module", [](Id, const Task& t) { return t.module.value(); });
  add("stage", [](Id, const Task& t) { return t.stage.value(); });
  add("microbatch", [](Id, const Task& t) { return t.microbatch.value(); });
  add("sub_microbatch", [](Id, const Task& t) { return t.sub_microbatch; });
  add("start_ns", [&](Id id, const Task&) {
    return spans[id] == nullptr ? 0 : (spans[id]->start - kStepStart).count();
  });
  add("end_ns", [&](Id id, const Task&) {
    return spans[id] == nullptr ? 0 : (spans[id]->end - kStepStart).count();
  });
  add("duration_ns", [](Id, const Task& t) { return t.duration.count(); });
  add("alloc_bytes", [](Id, const Task& t) { return t.alloc.count(); });
  add("free_bytes", [](Id, const Task& t) { return t.free.count(); });
  add("recomputes", [](Id, const Task& t) { return t.recomputes ? 1 : 0; });
  return columns;
}

std::string ReportOf(const StepPlan& plan) {
  using cli::FormatPercent;
  const planner::PlanResult& result = plan.result;
  Bytes peak;
  for (const Bytes b : result.peak_bytes()) peak = std::max(peak, b);
  cli::Report report;
  report.title = absl::StrCat("Plan of ", result.plan.job);
  report.subtitle = absl::StrFormat(
      "strategy %s, step %d, replica %d, %d tasks on %d ranks",
      result.plan.schedule, result.plan.step, result.plan.replica,
      result.plan.graph.num_tasks(), result.plan.graph.num_ranks());
  report.figures = {
      {"step time", FormatDuration(result.predicted.step_time()), ""},
      {"over the lower bound", FormatPercent(result.gap_ratio()),
       "no schedule is below it"},
      {"bubble", FormatPercent(result.bubble_ratio()), "idle rank time"},
      {"epilogue", FormatPercent(result.epilogue_ratio()),
       "rank time of gradient reduction and optimizer"},
      {"MFU", FormatPercent(result.mfu()), "of bf16 peak"},
      {"peak memory", FormatBytes(peak), "of one GPU"}};
  report.steps = {
      {.title = absl::StrCat("Step ", result.plan.step),
       .plan = &result.plan,
       .trace = &result.predicted,
       .microbatches = plan.planned ? &result.microbatches : nullptr}};
  report.notes = {"Times and memory are emulated."};
  return cli::ReportHtml(report);
}

}  // namespace pipeloom::python
