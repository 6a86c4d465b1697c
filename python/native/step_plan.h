// The plans that Python gets, and the page that shows one.
#ifndef PIPELOOM_PYTHON_NATIVE_STEP_PLAN_H_
#define PIPELOOM_PYTHON_NATIVE_STEP_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/step/step_types.h"

namespace pipeloom::python {

// The plan of one step of one replica with the trace of its emulation.
struct StepPlan {
  planner::PlanResult result{};
  // Whether the planner made it; a plan that was read has no count of
  // evaluations, no source of its bound and no microbatches.
  bool planned = false;
};

// Reads a plan from bytes or its text form, checks and emulates it. `name` is
// for errors. Returns the errors of ParsePlanFile and EmulateStep.
absl::StatusOr<std::shared_ptr<const StepPlan>> ReadStepPlan(
    absl::string_view content, const std::string& name);

// A column of numbers, 8 bytes each in this machine's order.
using Column = std::pair<std::string, std::string>;
// Returns the columns of the tasks, a row a task: rank, kind (0 forward, 1
// backward, 2 weight gradient), module, stage, microbatch, sub_microbatch,
// start_ns, end_ns, duration_ns, alloc_bytes, free_bytes, recomputes (0 or 1).
std::vector<Column> TaskColumns(const StepPlan& plan);

// Returns the HTML report of the plan (docs/report.md), a whole page.
std::string ReportOf(const StepPlan& plan);

}  // namespace pipeloom::python

#endif  // PIPELOOM_PYTHON_NATIVE_STEP_PLAN_H_
