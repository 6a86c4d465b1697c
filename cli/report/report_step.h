// One planned step of a report.
#ifndef PIPELOOM_CLI_REPORT_REPORT_STEP_H_
#define PIPELOOM_CLI_REPORT_REPORT_STEP_H_

#include <string>

#include "ir/plan/execution_plan.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

// Drawn with memory and a table of its ranks. Pointers must outlive the call.
struct ReportStep {
  std::string title{};
  const ExecutionPlan* plan = nullptr;
  const StepTrace* trace = nullptr;
  // What was measured of the same plan: drawn below the prediction.
  const StepTrace* measured = nullptr;
  // The batch's make-up, by microbatch and module.
  const Microbatches* microbatches = nullptr;
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_REPORT_STEP_H_
