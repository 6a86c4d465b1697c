// Runs a plan: one thread per rank, and a measured StepTrace.
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
  // Whether tensors are allocated and copied, up to a size (kMaxResident).
  bool allocate = false;
  // Tensors are there in full, for devices that compute with them.
  bool whole_tensors = false;
  // See DeviceContext.
  Bandwidth host_bandwidth{};
  // Of the whole run, wall time. 0: what all tasks and transfers would take
  // one after another, plus 30 s.
  std::chrono::nanoseconds timeout{};
  // How much of a thread's late wake-ups is hidden as a device's queue of
  // launched work would hide it, wall time; see runtime/rank_clock.h.
  std::chrono::nanoseconds max_lag = std::chrono::milliseconds(20);
  // When all ranks wait for one another for as long as this, the run has
  // failed; between processes, also the bound within which all ranks end once
  // one has failed, stopped or vanished. Wall time.
  std::chrono::nanoseconds failure_timeout = std::chrono::seconds(5);
  // Between processes: within which MPI must have started, wall time.
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
  std::stop_token stop{};
};

// Runs the plan with the inproc transport and synthetic devices.
// InvalidArgument: an option. FailedPrecondition: the plan does not pass
// ValidateExecutionPlan. DeadlineExceeded: the timeout, or all ranks wait for
// one another; names the ranks that are not done, where they are and which of
// them waits for no other.
// Cancelled: a stop request. Any other error is that of an instruction, with
// its rank, step and index.
absl::StatusOr<StepTrace> RunPlan(const ExecutionPlan& plan,
                                  const RunOptions& options = {});

// The same with a transport and devices of the caller's.
struct RunParts {
  std::function<std::unique_ptr<Transport>(const ExecutionPlan&,
                                           const RunOptions&)>
      make_transport{};
  DeviceFactory make_device{};
};
absl::StatusOr<StepTrace> RunPlanWith(const ExecutionPlan& plan,
                                      const RunOptions& options,
                                      const RunParts& parts);

// InvalidArgument names the first option that is out of range.
absl::Status CheckRunOptions(const RunOptions& options);
// What `timeout` means for this plan.
WallDuration RunTimeout(const ExecutionPlan& plan, const RunOptions& options);
// The ranks' own traces as one: spans by rank and start, what starts together
// in program order. All have the same num_ranks; by rank.
StepTrace MergeTraces(absl::Span<const StepTrace> traces);

// Inproc transport and synthetic devices.
RunParts SyntheticParts();

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_LAUNCH_H_
