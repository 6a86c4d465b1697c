// Runs of many steps, each with its own plan. While one step runs, the next
// plan is fetched and checked.
//
//     plans   [0] [1]     [2]   [3] ...
//     steps       [0    ] [1  ] [2      ] ...
#ifndef PIPELOOM_RUNTIME_RUN_STEPS_H_
#define PIPELOOM_RUNTIME_RUN_STEPS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::runtime {

using SharedPlan = std::shared_ptr<const ExecutionPlan>;

// Returns the plan of the run's index-th step, counted from 0. Called once for
// each step, in order, on a thread of its own.
using PlanFeed = std::function<absl::StatusOr<SharedPlan>(int64_t index)>;
// Runs one step.
using StepRunner = std::function<absl::StatusOr<StepTrace>(SharedPlan plan)>;
// Called for each step that is done, in order, on the thread that called
// RunSteps. An error ends the run.
using StepSink = std::function<absl::Status(int64_t index, SharedPlan plan,
                                            StepTrace trace)>;

// Runs `steps` steps. Returns the first error of any of the three functions.
// The feed may be one plan ahead at that time; RunSteps returns after it.
absl::Status RunSteps(int64_t steps, const PlanFeed& feed,
                      const StepRunner& run, const StepSink& sink);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_RUN_STEPS_H_
