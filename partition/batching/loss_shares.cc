#include "partition/batching/loss_shares.h"

#include <algorithm>

namespace pipeloom::partition {

void SetLoss(const ModelSpec& model, const PackedStep& step,
             const Microbatches& microbatches, ExecutionPlan* plan) {
  const auto works = [&](ModuleId m) {
    return step.totals[m].tokens > 0 || step.totals[m].instances > 0;
  };
  IdVector<ModuleId, bool> has_loss(model.modules.size(), false);
  if (step.totals.size() != model.modules.size()) return;
  for (const ModuleId m : model.modules.ids()) {
    bool feeds = false;
    for (const ModuleEdge& edge : model.edges) {
      feeds |= edge.from == m && works(edge.to);
    }
    const auto& layers = model.modules[m].layers;
    has_loss[m] =
        works(m) &&
        (!feeds ||
         std::any_of(layers.begin(), layers.end(), [](const LayerSpec& layer) {
           return layer.kind == LayerKind::kLossHead;
         }));
  }
  plan->loss_shares.clear();
  plan->loss_totals.clear();
  for (const ModuleId m : step.totals.ids()) {
    const PackedStep::Total& total = step.totals[m];
    if (!has_loss[m]) continue;
    plan->loss_totals.push_back(
        {.module = m, .tokens = total.tokens, .instances = total.instances});
  }
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    if (!has_loss[sub.module]) continue;
    plan->loss_shares.push_back({.module = sub.module,
                                 .microbatch = sub.microbatch,
                                 .sub_microbatch = sub.index,
                                 .tokens = sub.data().tokens,
                                 .instances = sub.shape.instances});
  }
  std::stable_sort(plan->loss_shares.begin(), plan->loss_shares.end(),
                   [](const LossShare& a, const LossShare& b) {
                     return a.module < b.module;
                   });
}

}  // namespace pipeloom::partition
