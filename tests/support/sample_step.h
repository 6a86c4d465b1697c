// A plan and the trace of its schedule without planner or emulator: tasks as
// timed by TimeSchedule, a transfer for each edge between ranks, memory as the
// tasks take and give it.
#ifndef PIPELOOM_TESTS_SUPPORT_SAMPLE_STEP_H_
#define PIPELOOM_TESTS_SUPPORT_SAMPLE_STEP_H_

#include "base/random.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::testing {

struct SampleStep {
  ExecutionPlan plan{};
  StepTrace trace{};
};

// Runs `graph` in a random order that respects its dependencies.
SampleStep MakeSampleStep(const StageGraph& graph, uint64_t seed = 1);

// Two modules on `ranks` ranks, one forward and one backward a stage.
StageGraph TwoModuleGraph(int32_t ranks, int32_t microbatches,
                          const std::string& first_name = "encoder");

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SUPPORT_SAMPLE_STEP_H_
