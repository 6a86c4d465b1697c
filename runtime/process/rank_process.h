// One rank of a run whose ranks are processes. It executes its program of each
// step's plan, together with the other ranks.
//
// The ranks agree on the plan (a rank whose plan differs from rank 0's ends the
// run), start each step at one time, commit it together and end together: the
// first failure anywhere ends all within RunOptions::failure_timeout.
#ifndef PIPELOOM_RUNTIME_PROCESS_RANK_PROCESS_H_
#define PIPELOOM_RUNTIME_PROCESS_RANK_PROCESS_H_

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "ir/plan/step_trace.h"
#include "runtime/device.h"
#include "runtime/launch.h"
#include "runtime/process/control_mesh.h"
#include "runtime/run_steps.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

// See the top of the file.
class RankProcess {
 public:
  struct Parts {
    ControlMesh* mesh = nullptr;     // Connected.
    Transport* transport = nullptr;  // This rank's.
    DeviceFactory make_device{};
    // The time that rank 0's clock shows when this rank's shows 0.
    WallDuration clock_of_rank_0{};
    // Called when this rank does not end although the run has failed, because
    // its device hangs. As a rule it ends the process.
    std::function<void(const absl::Status&)> on_stuck{};
  };
  // REQUIRES: the pointers in `parts` outlive the object.
  RankProcess(const RunOptions& options, Parts parts);
  ~RankProcess();

  // Runs the next step together with all ranks. Returns the trace of all ranks
  // on rank 0, of this rank elsewhere. An error is the run's failure: that of
  // the rank that failed first, with its place. REQUIRES: the plan passes
  // ValidateExecutionPlan.
  absl::StatusOr<StepTrace> RunStep(SharedPlan plan);

  // Reports a failure outside of a step, such as one of its plan. Returns the
  // run's failure, which all ranks report.
  absl::Status Fail(const absl::Status& reason);

 private:
  struct Rank;

  absl::StatusOr<StepTrace> TryStep(const SharedPlan& plan);
  absl::Status Agree(const ExecutionPlan& plan, WallTime deadline);
  absl::StatusOr<WallTime> StartTime(WallTime deadline);
  absl::StatusOr<StepTrace> Collect(const Rank& rank, WallTime deadline);
  absl::Status FailAt(const absl::Status& reason);
  uint64_t Topic(int which) const;

  RunOptions options_;
  Parts parts_;
  RankId id_;
  uint64_t steps_ = 0;  // Number of steps begun.
  Mutex mutex_{};
  // For messages: the plans of the step under way and of the one before it, in
  // which another rank may still be.
  SharedPlan plan_ ABSL_GUARDED_BY(mutex_){};
  SharedPlan last_plan_ ABSL_GUARDED_BY(mutex_){};
  std::stop_source stop_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_RANK_PROCESS_H_
