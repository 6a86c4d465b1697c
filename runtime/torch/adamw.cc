#include "runtime/torch/adamw.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace pipeloom::runtime {

using at::Tensor;

void AdamW::Step(const TorchStage& stage, const TorchOptions& o) {
  const at::NoGradGuard no_grad;
  ++steps_;
  const double correct1 = 1 - std::pow(o.beta1, static_cast<double>(steps_));
  const double correct2 = 1 - std::pow(o.beta2, static_cast<double>(steps_));
  size_t k = 0;
  for (const auto& layer : stage) {
    for (const Parameter& p : layer->parameters()) {
      if (!p.value.requires_grad()) continue;
      if (k == moments_.size()) {
        moments_.push_back({at::zeros_like(p.value), at::zeros_like(p.value)});
      }
      Moments& m = moments_[k++];
      Tensor weight = p.value;
      const Tensor g =
          weight.grad().defined() ? weight.grad() : at::zeros_like(weight);
      weight.mul_(1 - o.learning_rate * o.weight_decay);
      m.first.mul_(o.beta1).add_(g, 1 - o.beta1);
      m.second.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
      const Tensor scale =
          (m.second.sqrt() / std::sqrt(correct2)).add_(o.epsilon);
      weight.addcdiv_(m.first, scale, -o.learning_rate / correct1);
    }
  }
}

}  // namespace pipeloom::runtime
