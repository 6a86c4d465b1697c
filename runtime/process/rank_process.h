// One rank of a run whose ranks are processes: executes its program of each
// step's plan, together with the others.
//
// The ranks agree on the plan (every rank refuses another one than rank 0's),
// start each step at one time, commit it together and end together: the first
// failure anywhere ends all within RunOptions::failure_timeout.
#ifndef PIPELOOM_RUNTIME_PROCESS_RANK_PROCESS_H_
#define PIPELOOM_RUNTIME_PROCESS_RANK_PROCESS_H_

#include <functional>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/plan/step_trace.h"
#include "runtime/device.h"
#include "runtime/launch.h"
#include "runtime/process/control_mesh.h"
#include "runtime/run_steps.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

class RankProcess {
 public:
  struct Parts {
    ControlMesh* mesh = nullptr;     // Connected.
    Transport* transport = nullptr;  // Of this rank.
    DeviceFactory make_device{};
    // What rank 0's clock shows when this rank's shows 0.
    WallDuration clock_of_rank_0{};
    // Called when this rank does not end although the run has failed, because
    // its device hangs; as a rule it ends the process.
    std::function<void(const absl::Status&)> on_stuck{};
  };
  // The parts' pointers outlive it.
  RankProcess(const RunOptions& options, Parts parts);
  ~RankProcess();

  // Runs the next step, on all ranks. The plan passes ValidateExecutionPlan.
  // On rank 0 the trace is of all ranks, elsewhere of this one. An error is the
  // run's failure: of the rank that failed first, with its place.
  absl::StatusOr<StepTrace> RunStep(SharedPlan plan);

  // Reports a failure outside of a step, as of its plan; what all will say.
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
  uint64_t steps_ = 0;  // Begun.
  std::mutex mutex_{};
  // For messages: of the step under way and of the one before it, in which
  // another rank may still be.
  SharedPlan plan_{};
  SharedPlan last_plan_{};
  std::stop_source stop_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_PROCESS_RANK_PROCESS_H_
