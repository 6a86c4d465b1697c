// One stage on one sub-microbatch, from its forward to its last gradient, with
// the tensors that are kept, recomputed or offloaded in between.
//
// A stage runs in segments. A segment is a run of neighbouring layers that keep
// their autograd graph, except for results that are made again (made_again.h),
// or the layers of one checkpoint, which keep their input only and run again in
// the backward pass. The tensors that offloaded layers keep go to host memory
// when the forward is done and come back when the backward begins, or, if the
// plan says when (copies_apart), with Offload and Fetch.
#ifndef PIPELOOM_RUNTIME_TORCH_STAGE_RUN_H_
#define PIPELOOM_RUNTIME_TORCH_STAGE_RUN_H_

#include <memory>
#include <vector>

#include "ir/plan/memory_policy.h"
#include "runtime/torch/host_store.h"
#include "runtime/torch/layers.h"

namespace pipeloom::runtime {

using TorchStage = std::vector<std::unique_ptr<TorchLayer>>;

struct StageRunOptions {
  // Both outlive the run.
  const TorchStage* stage = nullptr;
  const TorchSequences* sequences = nullptr;
  int64_t loss_rows = 1;
  bool has_backward = false;
  bool needs_input_gradient = false;
  // Whether weight gradients are made by WeightGradient(), not by Backward().
  bool splits_backward = false;
  MemoryChoice memory{};  // Has as many layers as the stage, or none.
  // Whether the caller calls Offload() and Fetch().
  bool copies_apart = false;
  at::Device device = at::kCPU;
};

// See the top of the file.
class StageRun {
 public:
  explicit StageRun(StageRunOptions options) : options_(std::move(options)) {}
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  // Runs the forward; returns the output, detached from the graph. Call once.
  TorchState Forward(TorchState in);
  // Returns the loss of this sub-microbatch, after Forward; 0 if the stage
  // computes none.
  double loss() const { return loss_; }
  // Returns whether a layer's tensors are offloaded.
  bool offloads() const;
  // Copy the tensors of offloaded layers to the host and back. With
  // copies_apart, call each once, after Forward.
  void Offload();
  void Fetch();
  // Runs the backward; returns the gradients of the input, if they are needed.
  // Adds up the parameters' gradients in the parameters; if the backward is
  // split, not those of products' weights. Call once, after Forward and Fetch.
  TorchState Backward(TorchState gradient);
  // Computes the remaining gradients of a split backward. Call once, after
  // Backward.
  void WeightGradient() { put_off_.Run(); }

 private:
  struct Segment {
    size_t begin = 0;
    size_t end = 0;
    bool again = false;      // Whether it runs again in the backward.
    TorchState in{};         // Its input, kept until then.
    TorchState leaves{};     // Receive the input's gradients; hold no bytes.
    TorchState out{};        // Takes the output's gradients; holds no bytes.
    bool passes_on = false;  // Whether the output rows are the input rows.
    at::Tensor loss{};
  };
  std::vector<Segment> Cut() const;
  // Runs a segment layer by layer. Without a graph, only its output is kept.
  void RunSegment(Segment* segment, TorchState state, bool with_graph);
  // Runs segment k with a graph that begins at leaves of its own.
  TorchState RunWithGraph(size_t k, TorchState state);
  bool Offloads(size_t layer) const;

  StageRunOptions options_;
  std::vector<Segment> segments_{};
  WeightGradients put_off_{};
  HostStore store_{};
  double loss_ = 0;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_STAGE_RUN_H_
