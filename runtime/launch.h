// Runs of a plan with one thread per rank, which give a measured StepTrace.
//
// The first failure, the timeout or a stop request ends all ranks, within
// about 10 ms if their devices keep their contract (runtime/device.h). No rank
// steps its optimizer unless all ranks have come to that point.
#ifndef PIPELOOM_RUNTIME_LAUNCH_H_
#define PIPELOOM_RUNTIME_LAUNCH_H_

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/step_trace.h"
#include "runtime/device.h"
#include "runtime/rank_clock.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

struct RunOptions {
  // Wall time per plan time, > 0: 0.1 runs ten times as fast. The trace is in
  // plan time, so that it compares with the prediction.
  double time_scale = 1;
  // Whether tensors are allocated and copied, up to kMaxResident bytes each.
  bool allocate = false;
  // Whether tensors are allocated in full, for devices that compute with them.
  bool whole_tensors = false;
  // Limit of the whole run, wall time. 0: the time that all tasks and transfers
  // would take one after another, plus 30 s.
  std::chrono::nanoseconds timeout{};
  // The most lateness of a thread's wake-ups that is hidden, as a device's
  // queue of launched work would hide it; wall time. See runtime/rank_clock.h.
  std::chrono::nanoseconds max_lag = std::chrono::milliseconds(20);
  // The run fails when all ranks wait for one another for this long. Between
  // processes, also the time within which all ranks end after one has failed,
  // stopped or vanished. Wall time.
  std::chrono::nanoseconds failure_timeout = std::chrono::seconds(5);
  // Between processes: the time within which MPI must have started, wall time.
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
  std::stop_token stop{};
};

// Runs the plan with the inproc transport and synthetic devices.
// InvalidArgument: an option is out of range. FailedPrecondition: the plan does
// not pass ValidateExecutionPlan. DeadlineExceeded: the timeout has passed, or
// all ranks wait for one another; names the ranks that are not done, where they
// are and which of them waits for no other. Cancelled: a stop request. Any
// other error is that of an instruction, with its rank, step and index.
absl::StatusOr<StepTrace> RunPlan(const ExecutionPlan& plan,
                                  const RunOptions& options = {});

// The transport and the devices of a run.
struct RunParts {
  std::function<std::unique_ptr<Transport>(const ExecutionPlan&,
                                           const RunOptions&)>
      make_transport{};
  DeviceFactory make_device{};
};
// Runs the plan as RunPlan does, with the caller's transport and devices.
absl::StatusOr<StepTrace> RunPlanWith(const ExecutionPlan& plan,
                                      const RunOptions& options,
                                      const RunParts& parts);

// Checks the options. InvalidArgument names the first that is out of range.
absl::Status CheckRunOptions(const RunOptions& options);
// Returns the timeout of a run of this plan: RunOptions::timeout, or the
// default that it documents.
WallDuration RunTimeout(const ExecutionPlan& plan, const RunOptions& options);
// Merges the ranks' own traces, indexed by rank, into one. Spans are ordered by
// rank and start, those that start together in program order. REQUIRES: all
// traces have the same num_ranks.
StepTrace MergeTraces(absl::Span<const StepTrace> traces);

// Returns the parts that RunPlan uses: inproc transport and synthetic devices.
RunParts SyntheticParts();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_LAUNCH_H_
