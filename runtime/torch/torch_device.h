// A device that runs one rank of one step with libtorch: the computation of its
// tasks, and the tensors that cross the edges between them
// (docs/torch_device.md). Made by TorchTrainer.
#ifndef PIPELOOM_RUNTIME_TORCH_TORCH_DEVICE_H_
#define PIPELOOM_RUNTIME_TORCH_TORCH_DEVICE_H_

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device.h"
#include "runtime/torch/stage_run.h"
#include "runtime/torch/trainer_state.h"

namespace pipeloom::runtime {

// See the top of the file.
class TorchDevice final : public Device {
 public:
  // REQUIRES: `trainer` and its step outlive the device.
  TorchDevice(TrainerState* trainer, const DeviceContext& context);

  absl::Status Compute(TaskId id) override;
  absl::Span<const std::byte> Output(EdgeId edge) override;
  void Sent(EdgeId edge) override;
  absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) override;
  absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) override;
  absl::Status ReduceGradients() override { return absl::OkStatus(); }
  absl::Status OptimizerStep() override;

 private:
  // A run of rows of an edge, which goes into a first stage's input.
  struct Place {
    EdgeId edge{};
    int64_t from_row = 0;  // Index of the first among the edge's rows.
    int64_t count = 0;
  };

  // torch_device.cc
  absl::Status RunTask(TaskId id);
  // Returns a guard that adds the time until its destruction to `spent`, in
  // seconds.
  auto Timed(double* spent) const;
  size_t rank_index() const {
    return static_cast<size_t>(context_.rank.value());
  }
  absl::Status RunForward(TaskId id);
  absl::Status RunBackward(TaskId id);
  // Returns the run of a forward for a copy to or from the host.
  // FailedPrecondition: it has no backward to come, or does not offload.
  absl::StatusOr<StageRun*> RunToCopy(TaskId forward);
  // Frees, after a task, the results that it was the last to read.
  void Release(TaskId id);
  // Frees a result if neither a task of this rank nor a send will read it. A
  // send that has begun holds its own tensor.
  void ReleaseResult(TaskId from);

  // torch_edges.cc
  EdgeShape ShapeOf(EdgeId edge) const;
  // Return whether the edge carries a gradient from backward to backward, or an
  // output from forward to forward.
  bool CarriesGradient(EdgeId e) const { return Carries(e, Pass::kBackward); }
  bool CarriesOutput(EdgeId e) const { return Carries(e, Pass::kForward); }
  bool Carries(EdgeId e, Pass pass) const;
  bool IsFirstStage(const Task& task) const;
  bool IsLastStage(const Task& task) const;
  bool HasModuleEdge(ModuleId from, ModuleId to, bool as_context) const;
  // Returns the tensors that the edge's producer, on this rank, hands to its
  // consumer.
  absl::StatusOr<TorchState> Piece(EdgeId edge) const;
  // Returns the tensors that came along the edge, from this rank or another.
  absl::StatusOr<TorchState> Incoming(EdgeId edge) const;
  // Returns the places in the order of the input's rows: by sequence, feeding
  // module, instance.
  std::vector<Place> Places(TaskId forward, bool as_context) const;
  absl::StatusOr<at::Tensor> Gather(const std::vector<Place>& places) const;
  absl::StatusOr<TorchState> Inputs(TaskId id) const;
  // Returns the gradient of the stage's output.
  absl::StatusOr<TorchState> OutputGradient(TaskId id) const;
  // Splits a first stage's input gradient into a tensor for each edge to a
  // feeding module.
  void Scatter(TaskId id, const TorchState& below);

  TrainerState& trainer_;
  StepPlan& step_;
  const StageGraph& graph_;
  const ModelSpec& model_;
  const Partition& partition_;
  DeviceContext context_;
  at::ScalarType type_;
  at::Device device_;
  bool started_ = false;
  std::map<TaskId, std::unique_ptr<StageRun>> runs_{};  // Indexed by forward.
  // Outputs of forwards, and input gradients of backwards.
  absl::flat_hash_map<TaskId, TorchState> results_{};
  absl::flat_hash_map<EdgeId, at::Tensor> fed_gradients_{};
  absl::flat_hash_set<TaskId> done_{};
  absl::flat_hash_map<EdgeId, at::Tensor> sending_{};
  // Edges whose tensor has been sent, or copied to be sent.
  absl::flat_hash_set<EdgeId> sent_{};
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_DEVICE_H_
