// One stage on one sub-microbatch, from its forward to its last gradient: what
// is kept, recomputed or brought back from the host in between.
//
// A stage runs in segments: neighbouring layers that keep their autograd graph,
// without what is made again (made_again.h), or those of one checkpoint, which
// keep their input only and run again in the backward pass.
// What offloaded layers keep goes to host memory when the forward is through
// and comes back when the backward begins, or, if the plan says when
// (copies_apart), with Offload and Fetch.
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
  const TorchStage* stage = nullptr;  // All outlive the run.
  const TorchSequences* sequences = nullptr;
  int64_t loss_rows = 1;
  bool has_backward = false;
  bool needs_input_gradient = false;
  bool splits_backward = false;  // Weight gradients come apart.
  MemoryChoice memory{};         // Of as many layers as the stage, or none.
  bool copies_apart = false;
  at::Device device = at::kCPU;
};

class StageRun {
 public:
  explicit StageRun(StageRunOptions options) : options_(std::move(options)) {}
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  // Detached from the graph. Called once.
  TorchState Forward(TorchState in);
  // Of this sub-microbatch, after Forward; 0 if the stage has none.
  double loss() const { return loss_; }
  // Whether a layer waits on the host.
  bool offloads() const;
  // With copies_apart, after Forward, once each.
  void Offload();
  void Fetch();
  // Once, after Forward and Fetch. The gradients of what came in, if needed;
  // those of parameters are added up in them, unless the backward is split.
  TorchState Backward(TorchState gradient);
  // The rest of them. Once, after Backward.
  void WeightGradient() { put_off_.Run(); }

 private:
  struct Segment {
    size_t begin = 0;
    size_t end = 0;
    bool again = false;      // Runs again in the backward.
    TorchState in{};         // Meanwhile.
    TorchState leaves{};     // Where gradients of the input arrive; no bytes.
    TorchState out{};        // Where those of the output go in; no bytes.
    bool passes_on = false;  // The rows come out as they went in.
    at::Tensor loss{};
  };
  std::vector<Segment> Cut() const;
  // Layer by layer; without a graph only the output is left.
  void RunSegment(Segment* segment, TorchState state, bool with_graph);
  // With a graph from leaves of its own.
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
