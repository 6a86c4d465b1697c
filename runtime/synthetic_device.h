// A device that spends the time and the memory that the plan says, and computes
// nothing.
//
// Tasks take their duration times the time scale; the whole epilogue is spent
// in ReduceGradients. Offload and Fetch run one after another on a copy stream,
// overlapped with the compute stream: an Offload begins when its task is done,
// and a task waits for the Fetches of the activations that it needs. With
// DeviceContext::allocate, activations are allocated and touched, at most
// kMaxResident bytes for each task.
#ifndef PIPELOOM_RUNTIME_SYNTHETIC_DEVICE_H_
#define PIPELOOM_RUNTIME_SYNTHETIC_DEVICE_H_

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"
#include "runtime/device.h"

namespace pipeloom::runtime {

// See the top of the file.
class SyntheticDevice final : public Device {
 public:
  explicit SyntheticDevice(const DeviceContext& context);

  absl::Status Compute(TaskId task) override;
  absl::Span<const std::byte> Output(EdgeId edge) override;
  void Sent(EdgeId) override {}
  absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) override;
  absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) override;
  absl::Status ReduceGradients() override;
  absl::Status OptimizerStep() override;

 private:
  struct Block {
    Bytes accounted{};
    std::unique_ptr<std::byte[]> bytes{};
  };
  absl::Status TakeActivations(Bytes bytes);
  absl::Status ReleaseActivations(Bytes bytes);
  // Queues a copy on the copy stream.
  CopyTimes Copy(Bytes payload);
  WallTime CopiesNeededBy(TaskId task) const;

  DeviceContext context_;
  std::vector<Block> blocks_{};  // Activations held, if they are allocated.
  Bytes in_blocks_{};            // Sum of their `accounted`.
  WallTime copies_until_{};      // When the copy stream becomes idle.
  // Ends of Fetches, indexed by the task whose activations they bring back.
  absl::flat_hash_map<TaskId, WallTime> fetched_{};
  std::vector<std::byte> output_{};  // Every tensor is sent from here.
};

std::unique_ptr<Device> MakeSyntheticDevice(const DeviceContext& context);

// Returns a trace of this device with the time that was spent on each task as
// the length of its span; each begins where it did. Spans hold wall times: a
// rank that wakes up late begins its task late and ends it on time, so that the
// span is shorter than the work, down to nothing (runtime/rank_clock.h).
// REQUIRES: the trace is of a plan with this graph.
StepTrace WithTimesSpent(const StageGraph& graph, StepTrace trace);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_SYNTHETIC_DEVICE_H_
