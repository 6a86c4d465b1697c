#include "tests/runtime_torch/serial_training.h"

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/torch/layers.h"

namespace pipeloom::runtime {

struct SerialTraining::State {
  TorchSetup setup{};
  IdVector<ModuleId, std::vector<std::unique_ptr<TorchLayer>>> modules{};
  std::vector<std::pair<std::string, at::Tensor>> parameters{};
  std::optional<torch::optim::AdamW> optimizer{};

  TorchValues Values(bool gradients) const {
    TorchValues values;
    for (const auto& [name, p] : parameters) {
      if (gradients && !p.requires_grad()) continue;
      at::Tensor t = p.detach();
      if (gradients) t = p.grad().defined() ? p.grad() : at::zeros_like(t);
      t = t.to(at::kDouble).contiguous();
      values[name].assign(t.data_ptr<double>(),
                          t.data_ptr<double>() + t.numel());
    }
    return values;
  }
};

SerialTraining::SerialTraining(const TorchSetup& setup)
    : state_(std::make_unique<State>()) {
  at::set_num_threads(1);
  state_->setup = setup;
  const ModelSpec& model = setup.model;
  std::vector<at::Tensor> trained;
  for (const ModuleId m : model.modules.ids()) {
    bool feeds = false;
    for (const ModuleEdge& edge : model.edges) feeds |= edge.from == m;
    auto& layers = state_->modules[state_->modules.push_back({})];
    for (const LayerId l : model.modules[m].layers.ids()) {
      layers.push_back(std::make_unique<TorchLayer>(
          model.modules[m], l, feeds, setup.frozen[m], setup.options));
      for (const Parameter& p : layers.back()->parameters()) {
        state_->parameters.emplace_back(p.name, p.value);
        if (!setup.frozen[m]) trained.push_back(p.value);
      }
    }
  }
  const TorchOptions& o = setup.options;
  state_->optimizer.emplace(trained,
                            torch::optim::AdamWOptions(o.learning_rate)
                                .betas(std::make_tuple(o.beta1, o.beta2))
                                .eps(o.epsilon)
                                .weight_decay(o.weight_decay));
}

SerialTraining::~SerialTraining() = default;

double SerialTraining::Step(const TorchWork& work) {
  State& s = *state_;
  const ModelSpec& model = s.setup.model;
  for (auto& [name, p] : s.parameters) {
    if (p.requires_grad()) p.mutable_grad() = at::zeros_like(p);
  }
  double total = 0;
  for (const auto& microbatch : work.parts) {
    // The rows handed on, indexed by module, then sample.
    IdVector<ModuleId, std::map<int32_t, std::vector<at::Tensor>>> given(
        model.modules.size());
    at::Tensor loss;
    for (const ModuleId m : model.modules.ids()) {
      TorchSequences all;
      for (const TorchSequences& part : microbatch[m]) {
        all.insert(all.end(), part.begin(), part.end());
      }
      if (all.empty()) continue;
      TorchState state;
      for (const bool as_context : {false, true}) {
        std::vector<at::Tensor> rows;
        for (const TorchSequence& sequence : all) {
          for (const ModuleEdge& edge : model.edges) {
            if (edge.to != m || edge.as_context != as_context) continue;
            for (const at::Tensor& t : given[edge.from][sequence.owner]) {
              rows.push_back(t);
            }
          }
        }
        at::Tensor& into = as_context ? state.context : state.rows;
        if (!rows.empty()) into = at::cat(rows);
      }
      LayerRun run{.sequences = &all, .loss_rows = work.loss_rows[m]};
      for (const auto& layer : s.modules[m])
        state = layer->Forward(state, &run);
      int64_t at = 0;
      for (const TorchSequence& sequence : all) {
        given[m][sequence.owner].push_back(
            state.rows.narrow(0, at, sequence.output));
        at += sequence.output;
      }
      if (run.loss.defined()) {
        loss = loss.defined() ? loss + run.loss : run.loss;
      }
    }
    if (!loss.defined()) continue;
    total += loss.item<double>();
    if (loss.requires_grad()) loss.backward();
  }
  s.optimizer->step();
  return total;
}

TorchValues SerialTraining::Weights() const { return state_->Values(false); }
TorchValues SerialTraining::Gradients() const { return state_->Values(true); }

void SerialTraining::SetWeights(const TorchValues& weights) {
  const at::NoGradGuard no_grad;
  for (auto& [name, p] : state_->parameters) {
    const std::vector<double>& given = weights.at(name);
    p.copy_(at::tensor(given, at::kDouble).view(p.sizes()));
  }
}

}  // namespace pipeloom::runtime
