// The text form of graphs, schedules, plans and traces: for people to read, and
// parsed back exactly:
//
//   ParseExecutionPlan(ToString(plan)) == plan
//
// One line for each rank, task, edge, instruction and span; times in
// nanoseconds, memory in bytes. docs/plan_format.md describes it.
#ifndef PIPELOOM_IR_TEXT_TEXT_FORMAT_H_
#define PIPELOOM_IR_TEXT_TEXT_FORMAT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom {

// Return the text form.
std::string ToString(const StageGraph& graph);
std::string ToString(const Schedule& schedule);
std::string ToString(const ExecutionPlan& plan);
std::string ToString(const StepTrace& trace);

// Parse the text form. InvalidArgument gives the line number, what was expected
// and what was found. Blank lines and lines that begin with # are skipped.
absl::StatusOr<StageGraph> ParseStageGraph(absl::string_view text);
absl::StatusOr<Schedule> ParseSchedule(absl::string_view text);
absl::StatusOr<ExecutionPlan> ParseExecutionPlan(absl::string_view text);
absl::StatusOr<StepTrace> ParseStepTrace(absl::string_view text);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_TEXT_TEXT_FORMAT_H_
