// Carries out what a rank computes: the interface between the interpreter and
// a real or synthetic device. One object per rank, used by its thread only.
//
// A device serves one step. What it must keep from step to step (weights,
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

// When a copy between device and host memory began and will be done; the end
// may lie ahead. Equal: it took no time.
struct CopyTimes {
  WallTime begin{};
  WallTime end{};
};

class Device {
 public:
  virtual ~Device() = default;

  // Runs the task. Accounts for Task::alloc when it starts and for Task::free
  // when it ends.
  virtual absl::Status Compute(TaskId task) = 0;
  // The tensor to send along `edge`, after its producer has run. Its memory
  // stays as it is until Sent.
  virtual absl::Span<const std::byte> Output(EdgeId edge) = 0;
  // The send of `edge` has been waited for: what was there for it alone may go.
  // Its bytes are in the account until then.
  virtual void Sent(EdgeId edge) = 0;
  // Moves kept activations to the host and back.
  virtual absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) = 0;
  virtual absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) = 0;
  virtual absl::Status ReduceGradients() = 0;
  // Called once every rank has come this far without an error.
  virtual absl::Status OptimizerStep() = 0;
};

// What a device is made of; all outlive it.
struct DeviceContext {
  const ExecutionPlan* plan = nullptr;
  RankId rank{};
  RankClock* clock = nullptr;
  MemoryAccount* account = nullptr;
  // Where received tensors are, from WaitRecv to Free.
  const BufferTable* buffers = nullptr;
  bool allocate = false;
  // Between device and host memory, for Offload and Fetch, in plan time. 0:
  // copies take no time.
  Bandwidth host_bandwidth{};
};
using DeviceFactory =
    std::function<std::unique_ptr<Device>(const DeviceContext&)>;

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_DEVICE_H_
