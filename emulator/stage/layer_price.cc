#include "emulator/stage/layer_price.h"

#include <algorithm>
#include <vector>

#include "base/numeric.h"
#include "emulator/cost/copies_cost.h"
#include "emulator/framework/framework_price.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/stage/layer_memory.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {
namespace {

// Bytes per parameter, fully sharded: a layer's gradients are flattened, cast,
// scaled and cut.
constexpr double kFlattenBytes = 18;
// The same of Megatron-FSDP: its fused layers write gradients where they are
// reduced, and they are scaled there (param_and_grad_buffer.py,
// gradient_reduce_preprocessing).
constexpr double kScaleBytes = 4;

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
  const ShardedParameters trained =
      TrainedOnGpu(layer, setting.parallel, setting.options.adapter_rank);
  const int64_t dense = DenseReplicas(setting.parallel);
  const int64_t experts = ExpertReplicas(setting.parallel);
  const int64_t dense_shards = ShardsOf(dense, setting.setup);
  const int64_t expert_shards = ShardsOf(experts, setting.setup);
  const auto among = [&](Collective kind, GroupKind group, int64_t members,
                         int64_t parameters, int64_t parameter_bytes) {
    return OverReplicas(setting.costs,
                        {.kind = kind,
                         .group = group,
                         .size = members,
                         .bytes = Real(parameters * parameter_bytes)},
                        setting.tensor_copies);
  };
  Duration fused = kZero;  // Moved during a fused backward.
  if (setting.sharding == OptimizerSharding::kZero3) {
    const int64_t bytes = setting.setup.weight_bytes;
    const Duration gather =
        among(Collective::kAllGather, GroupKind::kData, dense_shards, own.dense,
              bytes) +
        among(Collective::kAllGather, GroupKind::kExpertData, expert_shards,
              own.experts, bytes);
    cost->forward = prices.OverlapWithSharding(cost->forward, gather);
    if (needs.input || needs.weights) {
      cost->backward = prices.OverlapWithSharding(cost->backward, gather);
      fused += gather;
    }
  }
  if (needs.weights) {
    if (setting.sharding == OptimizerSharding::kZero3) {
      const double parameters = Real(trained.dense + trained.experts);
      const bool in_place =
          IsMegatron(setting.setup) && !setting.setup.eager_pointwise;
      const Duration flatten =
          prices.Memory((in_place ? kScaleBytes : kFlattenBytes) * parameters);
      cost->weight_grad += flatten;
      cost->fused += flatten;
    }
    // Groups that hold a copy each need the sum over all of them: a ring over
    // all replicas moves as much over its slowest links as rings over shards.
    const auto reduced = [&](GroupKind group, int64_t replicas, int64_t shards,
                             int64_t parameters) {
      const int64_t bytes =
          GradientBytes(setting.options.precision, setting.setup);
      Duration time =
          among(Collective::kReduceScatter, group, replicas, parameters, bytes);
      if (shards < replicas) {
        time +=
            among(Collective::kAllGather, group, replicas, parameters, bytes);
      }
      return time;
    };
    const Duration reduce =
        reduced(GroupKind::kData, dense, dense_shards, trained.dense) +
        reduced(GroupKind::kExpertData, experts, expert_shards,
                trained.experts);
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

// Returns the time in which the backward of a layer with checkpoints by
// operator computes again what it needs: norms, activation and the second,
// fourth, ... product, except the output of attention where the checkpoint of
// its reduce-scatter replaces it, and the last one, which no gradient reads.
Duration OperatorsAgain(const LayerSpec& layer, const WorkShape& shape,
                        const LayerSetting& setting,
                        const FrameworkPrices& prices, const LayerOps& ops) {
  const ParallelLayout& parallel = setting.parallel;
  const AttentionSpec& a = layer.attention;
  const double tokens = Real(LayerTokens(layer, shape)) / parallel.cp;
  const double hidden = Real(layer.hidden);
  const auto product = [&](int64_t n, double k) {
    return prices.Cost(GemmOp{.m = tokens,
                              .n = Real(CeilDiv(n, int64_t{parallel.tp})),
                              .k = k,
                              .precision = setting.options.precision});
  };
  const auto group = [&](OperatorGroup g) {
    return prices.Sum(ops.again[static_cast<size_t>(g)]).time;
  };
  Duration time = group(OperatorGroup::kNorms) +
                  group(OperatorGroup::kActivations) +
                  product(a.kv_heads * a.head_dim, hidden);
  if (parallel.tp == 1) {
    time += product(layer.hidden, Real(a.heads * a.value_width()));
  }
  if (layer.ffn.gated) time += product(layer.ffn.hidden, hidden);
  return time;
}

// Launches that make a microbatch's mask, loss mask and positions of its tokens
// and broadcast them (Megatron-LM, pretrain_gpt.py: get_batch).
constexpr double kBatchLaunches = 13;

// Returns whether the GPU waits until the host has prepared the microbatch: on
// the first and the last rank, if the host has waited for the pass before.
bool PreparesBatch(const LayerSpec& layer, const LayerSetting& setting) {
  return (layer.kind == LayerKind::kEmbedding ||
          layer.kind == LayerKind::kLossHead) &&
         setting.parallel.pp > 1 && IsMegatron(setting.setup) &&
         setting.setup.overlap == CommunicationOverlap::kNone;
}

// Returns the bytes a logit that an fp32 loss holds for a moment in its
// backward: the gradient of the log-softmax and that of the logits. Megatron-
// Core's own loss, fused or not, turns the softmax into its gradient, which is
// cast to 16 bits (tensor_parallel/cross_entropy.py, fused_cross_entropy.py).
// Where gathers are operators of PyTorch, so is the loss.
int64_t LossScratch(const TrainingSetup& setup) {
  return IsMegatron(setup) && !setup.keeps_gathered ? 2 : 8;
}

// Returns the size of one byte for each logit on one GPU.
Bytes LogitsOnGpu(const LayerSpec& layer, const WorkShape& shape,
                  const ParallelLayout& parallel) {
  return Bytes(CeilDiv(LayerTokens(layer, shape) * layer.vocab,
                       parallel.gpus_per_rank()));
}

}  // namespace

LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& whole,
                     const WorkShape& shape, const GradientNeeds& needs,
                     const LayerSetting& setting) {
  const TrainingSetup& setup = setting.setup;
  const LayerOps ops =
      BuildLayerOps(layer, shape, setting.parallel, needs, setting.options);
  // TransformerEngine keeps inputs of low-precision products in fp8.
  const bool fp8_kept = setup.fp8_products && IsMegatron(setup) &&
                        layer.kind == LayerKind::kTransformer &&
                        setting.options.precision == Precision::kBf16;
  const LayerActivations kept = ActivationsOf(
      layer, shape, setting.parallel,
      fp8_kept ? Precision::kFp8 : setting.options.precision,
      setup.fp8_activation_inputs, setting.options.expert_imbalance);
  const FrameworkPrices prices(layer, shape, setting.parallel, setup,
                               setting.cluster, setting.device, setting.costs,
                               setting.microbatches);
  const bool has_backward = needs.input || needs.weights;

  StepsCost backward = prices.Sum(ops.backward);
  StepsCost weight_grad = prices.Sum(
      setup.sequence_parallel ? ops.weight_grad
                              : WithoutCommunication(ops.weight_grad));
  const StepsCost forward = prices.Sum(ops.forward);
  StepsCost fused = prices.Sum(ops.fused);
  if (!setup.sequence_parallel) {
    fused = {.time = backward.time + weight_grad.time,
             .gap = backward.gap,
             .wait = backward.wait + weight_grad.wait};
  }
  KernelTraffic traffic = prices.Traffic(ops);
  if (setting.options.adapter_rank > 0 && needs.weights &&
      traffic.forward_kernels > 0) {
    // Two adapters (NeMo's ParallelLinearAdapter): dropout, two products, scale
    // and sum; backward, both gradients of the products and their sums. Under
    // tensor parallelism each gathers twice and copies, and back.
    const bool divided = setting.parallel.tp > 1;
    traffic.forward_kernels += 2 * (5 + (divided ? 5 : 0));
    traffic.backward_kernels += 2 * (7 + (divided ? 8 : 0));
  }
  if (setup.sum_gradients_apart && needs.weights &&
      setting.options.adapter_rank == 0) {
    const ShardedParameters own = ParametersOnGpu(layer, setting.parallel);
    const Duration sum =
        prices.Memory(kGradientSumBytes * Real(own.dense + own.experts));
    weight_grad.time += sum;
    fused.time += sum;
  }
  LayerCost cost;
  cost.forward = prices.WithPowerLimit(
      ops.forward, prices.WithLaunches(forward.time + traffic.forward,
                                       traffic.forward_kernels));
  cost.weight_grad = prices.WithPowerLimit(
      ops.weight_grad,
      prices.WithLaunches(weight_grad.time, traffic.weight_grad_kernels));
  if (has_backward) {
    cost.backward = prices.WithPowerLimit(
        ops.backward, prices.WithLaunches(backward.time + traffic.backward,
                                          traffic.backward_kernels -
                                              traffic.weight_grad_kernels));
    const double fused_kernels =
        traffic.backward_kernels -
        (needs.weights ? 0 : traffic.weight_grad_kernels);
    cost.fused = prices.WithPowerLimit(
        ops.fused,
        prices.WithLaunches(fused.time + traffic.backward, fused_kernels));
    cost.backward_compute = prices.ComputeOf(
        cost.backward, backward.wait,
        traffic.backward_kernels - traffic.weight_grad_kernels);
    cost.fused_compute =
        prices.ComputeOf(cost.fused, fused.wait, fused_kernels);
    if (setup.recompute_attention) {
      const Duration core = prices.AttentionCore(ops.forward);
      cost.backward += core;
      cost.fused += core;
    }
  }
  if (PreparesBatch(layer, setting)) {
    cost.forward += prices.HostTime(kBatchLaunches);
  }
  cost.backward_gap = std::min(backward.gap, cost.backward);
  cost.fused_gap = std::min(fused.gap, cost.fused);
  if (setup.paired_forwards) {
    cost.forward_gap = std::min(forward.gap, cost.forward);
  }
  cost.forward_compute =
      prices.ComputeOf(cost.forward, forward.wait, traffic.forward_kernels);
  cost.forward_again = cost.forward;
  AddSharding(layer, needs, setting, prices, &cost);

  const int64_t adapter_rank = setting.options.adapter_rank;
  const bool own_weights = needs.weights && adapter_rank == 0;
  const UnfusedBytes more =
      UnfusedBytesOf(layer, shape, setting.parallel, setup, own_weights);
  const Bytes adapters =
      needs.weights ? AdapterBytes(layer, shape, setting.parallel, adapter_rank)
                    : Bytes(0);
  cost.activations =
      (own_weights ? kept.trained : kept.frozen + adapters) + more.kept;
  if (setup.recompute_attention) {
    cost.activations -= std::min(
        AttentionCoreBytes(layer, shape, setting.parallel), cost.activations);
  }
  const bool checks = setup.checkpoint_operators && own_weights &&
                      setting.options.precision != Precision::kFp32 &&
                      ChecksOperators(layer);
  Bytes again{};  // Computed again by the backward.
  if (checks) {
    const Bytes kept_products =
        std::min(OperatorCheckpointBytes(layer, shape, setting.parallel,
                                         setup.eager_pointwise),
                 cost.activations);
    again = cost.activations - kept_products;
    cost.activations = kept_products;
    const Duration time = OperatorsAgain(layer, shape, setting, prices, ops);
    cost.backward += time;
    cost.fused += time;
  }
  const bool fp32_loss =
      setup.fp32_loss && layer.kind == LayerKind::kLossHead && has_backward;
  const Bytes logits =
      fp32_loss ? LogitsOnGpu(layer, shape, setting.parallel) : Bytes(0);
  // The log-softmax in place of the 16-bit logits.
  cost.activations += 2 * logits;
  cost.freed_by_backward = cost.activations;
  if (needs.weights) {
    cost.freed_by_backward -= std::min(
        own_weights ? kept.held_for_weight_grad + more.held_for_weight_grad
                    : adapters,
        cost.activations);
  }
  cost.scratch =
      ScratchOf(layer, shape, setting.parallel, setting.options.precision,
                own_weights, setting.options.expert_imbalance);
  // Forward: 16-bit logits, their fp32 copy and the log-softmax, which is kept,
  // and which takes the place of the copy where the backward works in place.
  const int64_t loss_scratch = LossScratch(setup);
  cost.scratch.forward += (loss_scratch < 8 ? 4 : 8) * logits;
  for (Bytes* scratch : {&cost.scratch.fused, &cost.scratch.split}) {
    *scratch = fp32_loss && setup.framework != Framework::kTorchTitan
                   // Gradients of the loss head's product are made afterwards.
                   ? std::max(*scratch, loss_scratch * logits)
                   : *scratch + again + loss_scratch * logits;
  }
  for (size_t g = 0; g < cost.groups.size(); ++g) {
    const LayerActivations::Part& part = kept.groups[g];
    cost.groups[g].bytes = own_weights ? part.trained : part.frozen;
    if (g == static_cast<size_t>(OperatorGroup::kCoreAttention)) {
      cost.groups[g].bytes += more.scores;
    }
    // The framework recomputes it by itself.
    if (checks || (setup.recompute_attention &&
                   g == static_cast<size_t>(OperatorGroup::kCoreAttention))) {
      cost.groups[g].bytes = Bytes(0);
    }
    if (cost.groups[g].bytes == Bytes(0)) continue;
    cost.groups[g].again = prices.Sum(ops.again[g]).time;
  }
  // A frozen layer's projections start from norm outputs that are not kept.
  const auto norms = static_cast<size_t>(OperatorGroup::kNorms);
  GroupCost& projections =
      cost.groups[static_cast<size_t>(OperatorGroup::kProjections)];
  if (!own_weights && projections.bytes > Bytes(0)) {
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
