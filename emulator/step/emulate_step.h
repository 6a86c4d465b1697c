// Emulation of an ExecutionPlan in simulated time.
//
// Model: each rank executes its program strictly in order. Compute occupies the
// rank for the task's duration. Send and Recv return at once; a transfer begins
// when its Send has been reached, its Recv has been reached and its links are
// free, keeps them busy for the edge's `occupancy` and arrives `delay` after it
// began. WaitRecv blocks until arrival; WaitSend until the occupancy is over.
// ReduceGradients and OptimizerStep take the rank's epilogue together. Offload
// and Fetch run on a copy stream. docs/emulator_model.md says what is left out.
//
// For one plan many times, and without a trace: emulator/step/step_engine.h.
// With random durations: sample_step.h; for all replicas of a job:
// emulate_cluster.h.
#ifndef PIPELOOM_EMULATOR_STEP_EMULATE_STEP_H_
#define PIPELOOM_EMULATOR_STEP_EMULATE_STEP_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/step/emulate_options.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::emulator {

// Emulates a plan. FailedPrecondition shows the waiting ranks when the plan
// deadlocks, or the first instruction that names nothing of its rank or occurs
// twice; the other checks of ValidateExecutionPlan are assumed to hold.
// InvalidArgument names a field of the options that does not fit the plan.
// O(instructions log ranks). Deterministic; no global state.
absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options = {});

// An emulator of one plan after another that reuses the memory of the plans
// before: with large plans most of the time of EmulateStep is spent by the
// system on fresh pages. Use one emulator per thread.
class StepEmulator {
 public:
  StepEmulator();
  ~StepEmulator();
  StepEmulator(const StepEmulator&) = delete;
  StepEmulator& operator=(const StepEmulator&) = delete;

  // Replaces the contents of `trace` and reuses its memory; after an error its
  // contents are unspecified.
  absl::Status Emulate(const ExecutionPlan& plan, const EmulateOptions& options,
                       StepTrace* trace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_EMULATE_STEP_H_
