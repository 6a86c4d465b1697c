#include "runtime/torch/stage_run.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace pipeloom::runtime {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

Tensor Sum(const Tensor& a, const Tensor& b) {
  if (!a.defined()) return b;
  return b.defined() ? a + b : a;
}

// Returns a tensor of the same shape that holds one element.
Tensor ShapeOnly(const Tensor& t) {
  return at::zeros({1}, t.options()).expand(t.sizes());
}

// Gives an output's shape and place in the graph without its bytes, which
// belong to the consumer of the output.
struct Root : Function<Root> {
  static Tensor forward(AutogradContext*, const Tensor& output) {
    return ShapeOnly(output);
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return gradients;
  }
};

// Gives the input's rows as the result of a leaf without bytes, so that the
// graph keeps the rows only where an operator saves them.
struct Given : Function<Given> {
  static Tensor forward(AutogradContext*, const Tensor&, const Tensor& rows) {
    return rows.detach();
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], Tensor()};
  }
};

Tensor FromLeaf(const Tensor& rows, bool need_gradient, Tensor* leaf) {
  if (!rows.defined()) return rows;
  *leaf = ShapeOnly(rows.detach()).requires_grad_(need_gradient);
  return Given::apply(*leaf, rows.detach());
}

}  // namespace

bool StageRun::Offloads(size_t layer) const {
  const std::vector<LayerMemory>& layers = options_.memory.layers;
  return !layers.empty() && layers[layer].offloads();
}

bool StageRun::offloads() const {
  for (size_t i = 0; i < options_.memory.layers.size(); ++i) {
    if (Offloads(i)) return true;
  }
  return false;
}

std::vector<StageRun::Segment> StageRun::Cut() const {
  const size_t layers = options_.stage->size();
  const MemoryChoice& choice = options_.memory;
  std::vector<Segment> segments;
  for (size_t i = 0; i < layers;) {
    const bool again =
        !choice.layers.empty() && choice.layers[i].recomputes_fully();
    const size_t end = again ? choice.CheckpointEnd(i) : i + 1;
    if (!again && !segments.empty() && !segments.back().again) {
      segments.back().end = end;
    } else {
      segments.push_back({.begin = i, .end = end, .again = again});
    }
    i = end;
  }
  return segments;
}

void StageRun::RunSegment(Segment* segment, TorchState state, bool with_graph) {
  const at::AutoGradMode mode(with_graph);
  LayerRun run{.sequences = options_.sequences,
               .loss_rows = options_.loss_rows,
               .put_off = options_.splits_backward ? &put_off_ : nullptr};
  // A weak pointer: the rows may be freed, but their address is not reused.
  const c10::weak_intrusive_ptr<c10::TensorImpl> given(
      state.rows.getIntrusivePtr());
  const std::vector<LayerMemory>& layers = options_.memory.layers;
  for (size_t i = segment->begin; i < segment->end; ++i) {
    if (!layers.empty()) run.again = layers[i].groups;
    const HostStore::Scope host(with_graph && Offloads(i) ? &store_ : nullptr);
    state = (*options_.stage)[i]->Forward(std::move(state), &run);
  }
  segment->passes_on =
      state.rows.unsafeGetTensorImpl() == given._unsafe_get_target();
  segment->out = std::move(state);
  segment->loss = run.loss;
}

TorchState StageRun::RunWithGraph(size_t k, TorchState state) {
  Segment& segment = segments_[k];
  const at::AutoGradMode mode(true);
  TorchState given{
      .rows = FromLeaf(state.rows, k > 0 || options_.needs_input_gradient,
                       &segment.leaves.rows),
      .context = FromLeaf(state.context, options_.needs_input_gradient,
                          &segment.leaves.context)};
  state = {};
  RunSegment(&segment, std::move(given), /*with_graph=*/true);
  // A segment does not keep the output that it hands on.
  Tensor& rows = segment.out.rows;
  const TorchState result{.rows = rows.detach()};
  rows =
      segment.passes_on || !rows.requires_grad() ? Tensor() : Root::apply(rows);
  segment.out.context = Tensor();
  return result;
}

TorchState StageRun::Forward(TorchState state) {
  segments_ = Cut();
  if (offloads()) {
    for (const auto& layer : *options_.stage) {
      for (const Parameter& p : layer->parameters()) store_.LeaveOut(p.value);
    }
  }
  for (size_t k = 0; k < segments_.size(); ++k) {
    Segment& segment = segments_[k];
    const Tensor context = state.context;
    if (options_.has_backward && !segment.again) {
      state = RunWithGraph(k, std::move(state));
    } else {
      if (options_.has_backward) segment.in = state;
      RunSegment(&segment, std::move(state), /*with_graph=*/false);
      state = {.rows = segment.out.rows.detach()};
      segment.out = {};
    }
    state.context = context;
    if (segment.loss.defined()) loss_ += segment.loss.item<double>();
    if (segment.again) segment.loss = Tensor();
  }
  if (options_.has_backward && !options_.copies_apart) Offload();
  return state;
}

void StageRun::Offload() { store_.Leave(); }

void StageRun::Fetch() { store_.Return(options_.device); }

TorchState StageRun::Backward(TorchState gradient) {
  if (!options_.copies_apart) Fetch();
  for (size_t k = segments_.size(); k-- > 0;) {
    Segment& segment = segments_[k];
    if (segment.again) RunWithGraph(k, std::exchange(segment.in, {}));
    variable_list roots;
    variable_list gradients;
    TorchState below;
    if (segment.passes_on) below.rows = gradient.rows;
    if (segment.out.rows.defined()) {
      roots.push_back(segment.out.rows);
      gradients.push_back(gradient.rows);
    }
    gradient.rows = Tensor();
    if (segment.loss.defined() && segment.loss.requires_grad()) {
      roots.push_back(segment.loss);
      gradients.push_back(at::ones_like(segment.loss));
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
    const TorchState& leaves = segment.leaves;
    if (leaves.rows.defined()) {
      below.rows = Sum(leaves.rows.grad(), below.rows);
      if (!below.rows.defined())
        below.rows = at::zeros(leaves.rows.sizes(), leaves.rows.options());
    }
    // The context goes unchanged to the layers above, so its gradients add up.
    if (leaves.context.defined()) {
      below.context = Sum(leaves.context.grad(), gradient.context);
      if (!below.context.defined()) {
        below.context =
            at::zeros(leaves.context.sizes(), leaves.context.options());
      }
    }
    gradient = std::move(below);
    segment = {};
  }
  return gradient;
}

}  // namespace pipeloom::runtime
