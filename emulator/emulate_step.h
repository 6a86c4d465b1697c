// Carries an ExecutionPlan out in simulated time.
//
// Model: each rank executes its program strictly in order. Compute occupies
// the rank for the task's duration. Send and Recv return at once; a transfer
// begins when its Send has been reached, its Recv has been reached and its
// channel is free, keeps the channel busy for the edge's `occupancy` and
// arrives `delay` after it began. WaitRecv blocks until arrival; WaitSend
// until the occupancy is over. ReduceGradients and OptimizerStep take the
// rank's epilogue together. Offload and Fetch run on a copy stream.
// What is left out: docs/emulator_model.md.
#ifndef PIPELOOM_EMULATOR_EMULATE_STEP_H_
#define PIPELOOM_EMULATOR_EMULATE_STEP_H_

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/execution_plan.h"
#include "ir/step_trace.h"

namespace pipeloom::emulator {

enum class LinkSharing {
  kNone,     // Transfers never wait for each other.
  kPerPair,  // One at a time from each rank to each other rank.
  kPerRank,  // One at a time out of each rank, and one at a time into it.
};

struct EmulateOptions {
  LinkSharing sharing = LinkSharing::kPerPair;
  // Every send blocks its rank until the transfer's occupancy is over.
  bool blocking_sends = false;
  // Spans of waits and transfers and the memory timeline; off, only task
  // spans and the finish are filled in, which is faster.
  bool full_trace = true;
  // Of the copy stream, for Offload and Fetch: a plan does not carry it. 0:
  // copies take no time.
  Bandwidth host_bandwidth{};
};

// FailedPrecondition shows the waiting ranks when the plan deadlocks, or the
// first instruction that names nothing of its rank or comes twice; what else
// ValidateExecutionPlan checks is taken for granted.
// O(instructions log ranks). Deterministic; no global state.
absl::StatusOr<StepTrace> EmulateStep(const ExecutionPlan& plan,
                                      const EmulateOptions& options = {});

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_EMULATE_STEP_H_
