#include "emulator/stage/layer_price.h"

#include <algorithm>
#include <vector>

#include "base/numeric.h"
#include "emulator/cost/copies_cost.h"
#include "emulator/cost/framework_price.h"
#include "emulator/stage/layer_memory.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {
namespace {

// Bytes per parameter, fully sharded: a layer's gradients are flattened, cast,
// scaled and cut.
constexpr double kFlattenBytes = 18;

// Adds the traffic of sharding: fully sharded weights are gathered for each
// pass, and gradients are reduced after each, overlapped with the passes of
// neighbouring layers.
void AddSharding(const LayerSpec& layer, const GradientNeeds& needs,
                 const LayerSetting& setting, const FrameworkPrices& prices,
                 LayerCost* cost) {
  if (setting.sharding != OptimizerSharding::kZero2 &&
      setting.sharding != OptimizerSharding::kZero3) {
    return;
  }
  const ShardedParameters own = ParametersOnGpu(layer, setting.parallel);
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
    cost->forward = prices.OverlapWithSharding(cost->forward, gather);
    if (needs.input || needs.weights) {
      cost->backward = prices.OverlapWithSharding(cost->backward, gather);
      fused += gather;
    }
  }
  if (needs.weights) {
    if (setting.sharding == OptimizerSharding::kZero3) {
      const double parameters = Real(own.dense + own.experts);
      const Duration flatten = prices.Memory(kFlattenBytes * parameters);
      cost->weight_grad += flatten;
      cost->fused += flatten;
    }
    const Duration reduce =
        moved(Collective::kReduceScatter,
              GradientBytes(setting.options.precision, setting.setup));
    cost->weight_grad = prices.OverlapWithSharding(cost->weight_grad, reduce);
    fused += reduce;
  }
  cost->fused = prices.OverlapWithSharding(cost->fused, fused);
}

// Returns the steps without communication: inputs were kept whole, so nothing
// is gathered again.
std::vector<OpStep> WithoutCommunication(std::vector<OpStep> steps) {
  for (OpStep& step : steps) step.communication.clear();
  return steps;
}

}  // namespace

LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& whole,
                     const WorkShape& shape, const GradientNeeds& needs,
                     const LayerSetting& setting) {
  const TrainingSetup& setup = setting.setup;
  const LayerOps ops =
      BuildLayerOps(layer, shape, setting.parallel, needs, setting.options);
  const LayerActivations kept =
      ActivationsOf(layer, shape, setting.parallel, setting.options.precision);
  const FrameworkPrices prices(layer, shape, setting.parallel, setup,
                               setting.cluster, setting.device, setting.costs);
  const bool has_backward = needs.input || needs.weights;

  StepsCost backward = prices.Sum(ops.backward);
  StepsCost weight_grad = prices.Sum(
      setup.sequence_parallel ? ops.weight_grad
                              : WithoutCommunication(ops.weight_grad));
  StepsCost fused = prices.Sum(ops.fused);
  if (!setup.sequence_parallel) {
    fused = {.time = backward.time + weight_grad.time, .gap = backward.gap};
  }
  const KernelTraffic traffic = prices.Traffic(ops);
  LayerCost cost;
  cost.forward = prices.WithLaunches(
      prices.Sum(ops.forward).time + traffic.forward, traffic.forward_kernels);
  cost.weight_grad =
      prices.WithLaunches(weight_grad.time, traffic.weight_grad_kernels);
  if (has_backward) {
    cost.backward = prices.WithLaunches(
        backward.time + traffic.backward,
        traffic.backward_kernels - traffic.weight_grad_kernels);
    cost.fused = prices.WithLaunches(
        fused.time + traffic.backward,
        traffic.backward_kernels -
            (needs.weights ? 0 : traffic.weight_grad_kernels));
    if (setup.recompute_attention) {
      const Duration core = prices.AttentionCore(ops.forward);
      cost.backward += core;
      cost.fused += core;
    }
  }
  cost.backward_gap = std::min(backward.gap, cost.backward);
  cost.fused_gap = std::min(fused.gap, cost.fused);
  cost.forward_again = cost.forward;
  AddSharding(layer, needs, setting, prices, &cost);

  const UnfusedBytes more =
      UnfusedBytesOf(layer, shape, setting.parallel, setup, needs.weights);
  cost.activations = (needs.weights ? kept.trained : kept.frozen) + more.kept;
  if (setup.recompute_attention) {
    cost.activations -= std::min(
        AttentionCoreBytes(layer, shape, setting.parallel), cost.activations);
  }
  cost.freed_by_backward = cost.activations;
  if (needs.weights) {
    cost.freed_by_backward -=
        std::min(kept.held_for_weight_grad + more.held_for_weight_grad,
                 cost.activations);
  }
  cost.scratch = ScratchOf(layer, shape, setting.parallel,
                           setting.options.precision, needs.weights);
  for (size_t g = 0; g < cost.groups.size(); ++g) {
    const LayerActivations::Part& part = kept.groups[g];
    cost.groups[g].bytes = needs.weights ? part.trained : part.frozen;
    // The framework recomputes it by itself.
    if (setup.recompute_attention &&
        g == static_cast<size_t>(OperatorGroup::kCoreAttention)) {
      cost.groups[g].bytes = Bytes(0);
    }
    if (cost.groups[g].bytes == Bytes(0)) continue;
    cost.groups[g].again = prices.Sum(ops.again[g]).time;
  }
  // A frozen layer's projections start from norm outputs that are not kept.
  const auto norms = static_cast<size_t>(OperatorGroup::kNorms);
  GroupCost& projections =
      cost.groups[static_cast<size_t>(OperatorGroup::kProjections)];
  if (!needs.weights && projections.bytes > Bytes(0)) {
    projections.again += prices.Sum(ops.again[norms]).time;
  }
  cost.forward_flops = setting.copies == 1
                           ? ops.forward_flops
                           : BuildLayerOps(layer, whole, setting.parallel,
                                           needs, setting.options)
                                 .forward_flops;
  return cost;
}

}  // namespace pipeloom::emulator
