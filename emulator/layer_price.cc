#include "emulator/layer_price.h"

#include "base/numeric.h"
#include "emulator/copies_cost.h"
#include "emulator/layer_memory.h"
#include "emulator/layer_weights.h"

namespace pipeloom::emulator {
namespace {

// Fully sharded weights are gathered for each pass, and gradients reduced
// after each, beside the neighbouring layers' passes: a pass is at least as
// long as what is moved beside it.
void AddSharding(const LayerSpec& layer, const GradientNeeds& needs,
                 const LayerSetting& setting, LayerCost* cost) {
  if (setting.sharding != OptimizerSharding::kZero2 &&
      setting.sharding != OptimizerSharding::kZero3) {
    return;
  }
  const ShardedParameters own = ParametersOnGpu(layer, setting.parallel);
  const ParameterBytes bytes = BytesOf(setting.options.precision);
  const auto moved = [&](Collective kind, int64_t parameter_bytes) {
    return OverReplicas(setting.costs,
                        {.kind = kind,
                         .group = GroupKind::kData,
                         .size = DenseReplicas(setting.parallel),
                         .bytes = Real(own.dense * parameter_bytes)},
                        setting.tensor_copies) +
           OverReplicas(setting.costs,
                        {.kind = kind,
                         .group = GroupKind::kExpertData,
                         .size = ExpertReplicas(setting.parallel),
                         .bytes = Real(own.experts * parameter_bytes)},
                        setting.tensor_copies);
  };
  Duration fused = kZero;  // Moved during a fused backward.
  if (setting.sharding == OptimizerSharding::kZero3) {
    const Duration gather = moved(Collective::kAllGather, 2);
    cost->forward = setting.costs.Beside(cost->forward, gather);
    if (needs.input || needs.weights) {
      cost->backward = setting.costs.Beside(cost->backward, gather);
      fused += gather;
    }
  }
  if (needs.weights) {
    const Duration reduce = moved(Collective::kReduceScatter, bytes.gradients);
    cost->weight_grad = setting.costs.Beside(cost->weight_grad, reduce);
    fused += reduce;
  }
  cost->fused = setting.costs.Beside(cost->fused, fused);
}

}  // namespace

LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& whole,
                     const WorkShape& shape, const GradientNeeds& needs,
                     const LayerSetting& setting) {
  const LayerOps ops =
      BuildLayerOps(layer, shape, setting.parallel, needs, setting.options);
  const LayerActivations kept =
      ActivationsOf(layer, shape, setting.parallel, setting.options.precision);
  LayerCost cost;
  const StepsCost backward = CostOf(ops.backward, setting.costs);
  const StepsCost fused = CostOf(ops.fused, setting.costs);
  cost.forward = CostOf(ops.forward, setting.costs).time;
  cost.backward = backward.time;
  cost.backward_gap = backward.gap;
  cost.weight_grad = CostOf(ops.weight_grad, setting.costs).time;
  cost.fused = fused.time;
  cost.fused_gap = fused.gap;
  AddSharding(layer, needs, setting, &cost);
  cost.activations = needs.weights ? kept.trained : kept.frozen;
  cost.freed_by_backward =
      needs.weights ? kept.trained - kept.held_for_weight_grad : kept.frozen;
  for (size_t g = 0; g < cost.groups.size(); ++g) {
    const LayerActivations::Part& part = kept.groups[g];
    cost.groups[g].bytes = needs.weights ? part.trained : part.frozen;
    if (cost.groups[g].bytes == Bytes(0)) continue;
    cost.groups[g].again = CostOf(ops.again[g], setting.costs).time;
  }
  // A frozen layer's projections start from norm outputs that are not kept.
  const auto norms = static_cast<size_t>(OperatorGroup::kNorms);
  GroupCost& projections =
      cost.groups[static_cast<size_t>(OperatorGroup::kProjections)];
  if (!needs.weights && projections.bytes > Bytes(0)) {
    projections.again += CostOf(ops.again[norms], setting.costs).time;
  }
  cost.forward_flops = setting.copies == 1
                           ? ops.forward_flops
                           : BuildLayerOps(layer, whole, setting.parallel,
                                           needs, setting.options)
                                 .forward_flops;
  return cost;
}

}  // namespace pipeloom::emulator
