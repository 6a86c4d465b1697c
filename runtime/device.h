// The interface between the interpreter and a real or synthetic device, which
// carries out a rank's computation.
//
// A device serves one step. State that lasts from step to step (weights,
// optimizer state) belongs to its factory, which is called for every step and
// rank, on that rank's thread in a run of processes.
//
// Every call returns when its work is done, fails with a reason, or, when the
// run is stopped (the RankClock's stop token), returns Cancelled soon: a call
// that does not return keeps the whole run from ending.
#ifndef PIPELOOM_RUNTIME_DEVICE_H_
#define PIPELOOM_RUNTIME_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/execution_plan.h"
#include "runtime/buffer_table.h"
#include "runtime/memory_account.h"
#include "runtime/rank_clock.h"

namespace pipeloom::runtime {

// Begin and end of a copy between device and host memory. The end may lie in
// the future. If both are equal, the copy took no time.
struct CopyTimes {
  WallTime begin{};
  WallTime end{};
};

// One rank's device for one step, used by the rank's thread only.
class Device {
 public:
  virtual ~Device() = default;

  // Runs the task. Adds Task::alloc to the memory account when it starts and
  // subtracts Task::free when it ends.
  virtual absl::Status Compute(TaskId task) = 0;
  // Returns the tensor to send along `edge`; its memory stays unchanged until
  // Sent. REQUIRES: the edge's producer has run.
  virtual absl::Span<const std::byte> Output(EdgeId edge) = 0;
  // Called when the send of `edge` has been waited for: the device may free
  // what it held for this send alone. The account counts its bytes until then.
  virtual void Sent(EdgeId edge) = 0;
  // Move kept activations to the host and back.
  virtual absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) = 0;
  virtual absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) = 0;
  // Reduces gradients over the replicas.
  virtual absl::Status ReduceGradients() = 0;
  // Steps the optimizer. Called when every rank has come to its optimizer step
  // without an error.
  virtual absl::Status OptimizerStep() = 0;
};

// The arguments of a DeviceFactory. All pointers outlive the device.
struct DeviceContext {
  const ExecutionPlan* plan = nullptr;
  RankId rank{};
  RankClock* clock = nullptr;
  MemoryAccount* account = nullptr;
  // Received tensors, from WaitRecv to Free.
  const BufferTable* buffers = nullptr;
  bool allocate = false;
};
using DeviceFactory =
    std::function<std::unique_ptr<Device>(const DeviceContext&)>;

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_DEVICE_H_
