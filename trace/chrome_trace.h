// A StepTrace in the Chrome trace format (JSON), which Perfetto opens: one
// process per rank; tracks for compute, waits, transfers and copies; arrows
// from each transfer to the task that takes its tensor; a counter for each kind
// of memory. Times are in microseconds. Spans that overlap on a track are
// spread over several tracks, as the format requires nested spans.
// Format: "Trace Event Format", Google, 2016.
#ifndef PIPELOOM_TRACE_CHROME_TRACE_H_
#define PIPELOOM_TRACE_CHROME_TRACE_H_

#include <string>

#include "absl/types/span.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::trace {

struct TracedPlan {
  const ExecutionPlan* plan = nullptr;
  const StepTrace* trace = nullptr;
};

// Returns the trace of the plans, one after another in time as the steps of one
// run. Plans of other replicas of the same step run at the same time, as
// further processes. O(spans log spans).
std::string ChromeTrace(absl::Span<const TracedPlan> plans);

}  // namespace pipeloom::trace

#endif  // PIPELOOM_TRACE_CHROME_TRACE_H_
