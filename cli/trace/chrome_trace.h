// A StepTrace in the Chrome trace format (JSON), which Perfetto opens: a
// process a rank; tracks for compute, waits, transfers and copies; arrows from
// each transfer to the task that takes its tensor; a counter for each kind of
// memory. Times are microseconds. Spans that overlap on a track are spread over
// as many tracks as it takes, as the format wants them nested.
// Format: "Trace Event Format", Google, 2016.
#ifndef PIPELOOM_CLI_TRACE_CHROME_TRACE_H_
#define PIPELOOM_CLI_TRACE_CHROME_TRACE_H_

#include <string>

#include "absl/types/span.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::cli {

struct TracedPlan {
  const ExecutionPlan* plan = nullptr;
  const StepTrace* trace = nullptr;
};

// The plans one after another in time, as the steps of one run; those of
// another replica of the same step side by side, as further processes.
// O(spans log spans).
std::string ChromeTrace(absl::Span<const TracedPlan> plans);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_TRACE_CHROME_TRACE_H_
