// One rank of one step on libtorch: what its tasks compute, and what crosses
// the edges between them (docs/torch_device.md). Made by TorchTrainer.
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

class TorchDevice final : public Device {
 public:
  // `trainer` outlives it, and so does its step.
  TorchDevice(TrainerState* trainer, const DeviceContext& context);

  absl::Status Compute(TaskId id) override;
  absl::Span<const std::byte> Output(EdgeId edge) override;
  void Sent(EdgeId edge) override;
  absl::StatusOr<CopyTimes> Offload(TaskId task, Bytes payload) override;
  absl::StatusOr<CopyTimes> Fetch(TaskId task, Bytes payload) override;
  absl::Status ReduceGradients() override { return absl::OkStatus(); }
  absl::Status OptimizerStep() override;

 private:
  // Where in a first stage's input the rows of an edge go.
  struct Place {
    EdgeId edge{};
    int64_t from_row = 0;  // Of the edge's rows.
    int64_t count = 0;
  };

  // torch_device.cc
  absl::Status RunTask(TaskId id);
  // What the caller's scope spends goes there.
  auto Timed(double* spent) const;
  size_t rank_index() const {
    return static_cast<size_t>(context_.rank.value());
  }
  absl::Status RunForward(TaskId id);
  absl::Status RunBackward(TaskId id);
  // Of a forward whose backward is to come.
  absl::StatusOr<StageRun*> RunToCopy(TaskId forward);
  // After a task: lets go of what it was the last to read.
  void Release(TaskId id);
  // Lets go of a result that neither a task of this rank nor a send will read
  // any more. A send that has begun holds what it needs itself.
  void ReleaseResult(TaskId from);

  // torch_edges.cc
  EdgeShape ShapeOf(EdgeId edge) const;
  // Whether the edge is a gradient from backward to backward, an output from
  // forward to forward.
  bool CarriesGradient(EdgeId e) const { return Carries(e, Pass::kBackward); }
  bool CarriesOutput(EdgeId e) const { return Carries(e, Pass::kForward); }
  bool Carries(EdgeId e, Pass pass) const;
  bool IsFirstStage(const Task& task) const;
  bool IsLastStage(const Task& task) const;
  bool HasModuleEdge(ModuleId from, ModuleId to, bool as_context) const;
  // What the edge's producer, on this rank, hands to its consumer.
  absl::StatusOr<TorchState> Piece(EdgeId edge) const;
  // What came along the edge, from this rank or another.
  absl::StatusOr<TorchState> Incoming(EdgeId edge) const;
  // In the order of the input's rows: by sequence, feeding module, instance.
  std::vector<Place> Places(TaskId forward, bool as_context) const;
  absl::StatusOr<at::Tensor> Gather(const std::vector<Place>& places) const;
  absl::StatusOr<TorchState> Inputs(TaskId id) const;
  // The gradient of the stage's output.
  absl::StatusOr<TorchState> OutputGradient(TaskId id) const;
  // From a first stage's input gradient to a tensor for each edge down.
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
  std::map<TaskId, std::unique_ptr<StageRun>> runs_{};  // By forward.
  // Of forwards their output, of backwards the gradient of their input.
  absl::flat_hash_map<TaskId, TorchState> results_{};
  absl::flat_hash_map<EdgeId, at::Tensor> fed_gradients_{};
  absl::flat_hash_set<TaskId> done_{};
  absl::flat_hash_map<EdgeId, at::Tensor> sending_{};
  absl::flat_hash_set<EdgeId> sent_{};  // Or has a copy that is.
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_DEVICE_H_
