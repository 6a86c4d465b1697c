// One planned step of a report.
#ifndef PIPELOOM_CLI_REPORT_REPORT_STEP_H_
#define PIPELOOM_CLI_REPORT_REPORT_STEP_H_

#include <string>

#include "ir/plan/execution_plan.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

// A step that is drawn with its memory and a table of its ranks. REQUIRES: the
// pointers outlive the call of ReportHtml.
struct ReportStep {
  std::string title{};
  const ExecutionPlan* plan = nullptr;
  const StepTrace* trace = nullptr;
  // A measured trace of the same plan, drawn below the prediction; may be null.
  const StepTrace* measured = nullptr;
  // The batch's composition by microbatch and module.
  const Microbatches* microbatches = nullptr;
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_REPORT_STEP_H_
