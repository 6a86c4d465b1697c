// Many steps in one run, each with its own plan: while one step runs, the next
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

// The plan of the run's index-th step, from 0. Called once each, in order, on
// a thread of its own.
using PlanFeed = std::function<absl::StatusOr<SharedPlan>(int64_t index)>;
using StepRunner = std::function<absl::StatusOr<StepTrace>(SharedPlan plan)>;
// Told of each step that is done, in order, on the caller's thread. Its error
// ends the run.
using StepSink = std::function<absl::Status(int64_t index, SharedPlan plan,
                                            StepTrace trace)>;

// The first error of any of the three. The feed may be one plan ahead then;
// this returns when it has returned.
absl::Status RunSteps(int64_t steps, const PlanFeed& feed,
                      const StepRunner& run, const StepSink& sink);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_RUN_STEPS_H_
