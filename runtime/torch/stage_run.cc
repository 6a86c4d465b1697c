#include "runtime/torch/stage_run.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

namespace pipeloom::runtime {
namespace {

using at::Tensor;

Tensor Sum(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

// An output's shape and place in the graph without its bytes, which belong to
// whoever takes the output on.
struct Root : torch::autograd::Function<Root> {
  static Tensor forward(torch::autograd::AutogradContext*,
                        const Tensor& output) {
    return output.new_zeros({1}).expand(output.sizes());
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    return gradients;
  }
};

Tensor To(const Tensor& t, at::Device device) {
  return t.defined() ? t.to(device, /*non_blocking=*/false, /*copy=*/true) : t;
}

}  // namespace

std::vector<StageRun::Segment> StageRun::Cut() const {
  const size_t layers = options_.stage->size();
  const MemoryChoice& choice = options_.memory;
  std::vector<Segment> segments;
  for (size_t i = 0; i < layers;) {
    const LayerMemory memory =
        choice.layers.empty() ? LayerMemory() : choice.layers[i];
    // A layer that is recomputed in part keeps its graph.
    const MemoryStrategy strategy =
        memory.recomputes_partly() ? MemoryStrategy::kKeep : memory.strategy;
    const size_t end =
        memory.recomputes_fully() ? choice.CheckpointEnd(i) : i + 1;
    if (strategy == MemoryStrategy::kKeep && !segments.empty() &&
        segments.back().strategy == strategy) {
      segments.back().end = end;
    } else {
      segments.push_back({.begin = i, .end = end, .strategy = strategy});
    }
    i = end;
  }
  return segments;
}

TorchState StageRun::Leaves(const TorchState& state, bool need_gradient) const {
  TorchState leaves;
  if (state.rows.defined()) {
    leaves.rows = state.rows.detach().requires_grad_(need_gradient);
  }
  if (state.context.defined()) {
    leaves.context =
        state.context.detach().requires_grad_(options_.needs_input_gradient);
  }
  return leaves;
}

void StageRun::RunSegment(Segment* segment, bool with_graph) {
  const at::AutoGradMode mode(with_graph);
  LayerRun run{.sequences = options_.sequences,
               .loss_rows = options_.loss_rows,
               .put_off = options_.splits_backward ? &put_off_ : nullptr};
  TorchState state = segment->in;
  const std::vector<LayerMemory>& layers = options_.memory.layers;
  for (size_t i = segment->begin; i < segment->end; ++i) {
    if (!layers.empty()) run.again = layers[i].groups;
    state = (*options_.stage)[i]->Forward(state, &run);
  }
  segment->out = state;
  segment->loss = run.loss;
}

TorchState StageRun::Forward(const TorchState& in) {
  TorchState state = in;
  segments_ = Cut();
  for (size_t k = 0; k < segments_.size(); ++k) {
    Segment& segment = segments_[k];
    segment.in = options_.has_backward
                     ? Leaves(state, k > 0 || options_.needs_input_gradient)
                     : state;
    const bool keeps = segment.strategy == MemoryStrategy::kKeep;
    RunSegment(&segment, options_.has_backward && keeps);
    state.rows = segment.out.rows.detach();
    if (segment.loss.defined()) loss_ += segment.loss.item<double>();
    if (!keeps || !options_.has_backward) segment.out = {};
    if (!options_.has_backward) segment.in = {};
  }
  // What the stage hands on it does not keep.
  Tensor& last = segments_.back().out.rows;
  if (last.defined() && last.requires_grad() &&
      !last.is_same(segments_.back().in.rows)) {
    last = Root::apply(last);
  }
  if (options_.has_backward && !options_.copies_apart) Offload();
  return state;
}

bool StageRun::offloads() const {
  return std::any_of(segments_.begin(), segments_.end(), [](const Segment& s) {
    return s.strategy == MemoryStrategy::kOffload;
  });
}

void StageRun::Offload() {
  for (Segment& segment : segments_) {
    if (segment.strategy != MemoryStrategy::kOffload) continue;
    segment.host = {To(segment.in.rows, at::kCPU),
                    To(segment.in.context, at::kCPU)};
    segment.in = {};
  }
}

void StageRun::Fetch() {
  for (size_t k = 0; k < segments_.size(); ++k) Fetch(k);
}

void StageRun::Fetch(size_t k) {
  Segment& segment = segments_[k];
  if (segment.strategy != MemoryStrategy::kOffload) return;
  segment.in = Leaves({To(segment.host.rows, options_.device),
                       To(segment.host.context, options_.device)},
                      k > 0 || options_.needs_input_gradient);
  segment.host = {};
}

TorchState StageRun::Backward(TorchState gradient) {
  for (size_t k = segments_.size(); k-- > 0;) {
    Segment& segment = segments_[k];
    if (!options_.copies_apart) Fetch(k);
    if (segment.strategy != MemoryStrategy::kKeep) RunSegment(&segment, true);
    torch::autograd::variable_list roots;
    torch::autograd::variable_list gradients;
    if (segment.out.rows.requires_grad() &&
        !segment.out.rows.is_same(segment.in.rows)) {
      roots.push_back(segment.out.rows);
      gradients.push_back(gradient.rows);
    }
    if (segment.loss.defined() && segment.loss.requires_grad()) {
      roots.push_back(segment.loss);
      gradients.push_back(at::ones_like(segment.loss));
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    TorchState below;
    if (segment.in.rows.defined()) {
      below.rows = segment.in.rows.grad();
      if (segment.out.rows.is_same(segment.in.rows)) {
        below.rows = Sum(below.rows, gradient.rows);
      }
      if (!below.rows.defined()) below.rows = at::zeros_like(segment.in.rows);
    }
    // The context goes on as it is to the layers above.
    if (segment.in.context.defined()) {
      below.context = Sum(segment.in.context.grad(), gradient.context);
      if (!below.context.defined()) {
        below.context = at::zeros_like(segment.in.context);
      }
    }
    gradient = below;
    segment = {};
  }
  return gradient;
}

}  // namespace pipeloom::runtime
