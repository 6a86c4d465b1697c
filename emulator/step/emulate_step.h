// Carries an ExecutionPlan out in simulated time.
//
// Model: each rank executes its program strictly in order. Compute occupies
// the rank for the task's duration. Send and Recv return at once; a transfer
// begins when its Send has been reached, its Recv has been reached and its
// links are free, keeps them busy for the edge's `occupancy` and arrives
// `delay` after it began. WaitRecv blocks until arrival; WaitSend until the
// occupancy is over. ReduceGradients and OptimizerStep take the rank's
// epilogue together. Offload and Fetch run on a copy stream.
// What is left out: docs/emulator_model.md.
//
// For one plan many times, and without a trace: emulator/step/step_engine.h.
// For one plan with small changes: replay_step.h; with random durations:
// sample_step.h; for all replicas of a job: emulate_cluster.h.
#ifndef PIPELOOM_EMULATOR_STEP_EMULATE_STEP_H_
#define PIPELOOM_EMULATOR_STEP_EMULATE_STEP_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "emulator/step/emulate_options.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::emulator {

// FailedPrecondition shows the waiting ranks when the plan deadlocks, or the
// first instruction that names nothing of its rank or comes twice; what else
// ValidateExecutionPlan checks is taken for granted. InvalidArgument names a
// field of the options that does not fit the plan.
// O(instructions log ranks). Deterministic; no global state.
absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options = {});

// The same for one plan after another in the memory of the plans before: with
// large plans most of the time of EmulateStep is the system's, handing out
// fresh pages. One for each thread.
class StepEmulator {
 public:
  StepEmulator();
  ~StepEmulator();
  StepEmulator(const StepEmulator&) = delete;
  StepEmulator& operator=(const StepEmulator&) = delete;

  // Replaces what `trace` holds and reuses its memory; after an error it holds
  // nothing of use.
  absl::Status Emulate(const ExecutionPlan& plan, const EmulateOptions& options,
                       StepTrace* trace);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_EMULATE_STEP_H_
