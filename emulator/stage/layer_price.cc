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

// The cost of one layer, part by part: each reads what those before it set.
class LayerPricing {
 public:
  // Everything passed in must outlive it.
  LayerPricing(const LayerSpec& layer, const WorkShape& shape,
               const GradientNeeds& needs, const LayerSetting& setting)
      : layer_(layer),
        shape_(shape),
        needs_(needs),
        setting_(setting),
        setup_(setting.setup),
        ops_(BuildLayerOps(layer, shape, setting.parallel, needs,
                           setting.options)),
        kept_(ActivationsOf(
            layer, shape, setting.parallel,
            KeepsFp8() ? Precision::kFp8 : setting.options.precision,
            setup_.fp8_activation_inputs, setting.options.expert_imbalance)),
        prices_(layer, shape, setting.parallel, setup_, setting.cluster,
                setting.device, setting.costs, setting.microbatches),
        own_weights_(needs.weights && setting.options.adapter_rank == 0),
        more_(UnfusedBytesOf(layer, shape, setting.parallel, setup_,
                             own_weights_)),
        checks_operators_(setup_.checkpoint_operators && own_weights_ &&
                          setting.options.precision != Precision::kFp32 &&
                          ChecksOperators(layer)) {}

  LayerCost Cost() {
    SetTimes();
    AddSharding(layer_, needs_, setting_, prices_, &cost_);
    SetActivations();
    SetScratch();
    SetGroups();
    cost_.forward_flops = ops_.forward_flops;
    return cost_;
  }

 private:
  bool has_backward() const { return needs_.input || needs_.weights; }

  // TransformerEngine keeps inputs of low-precision products in fp8.
  bool KeepsFp8() const {
    return setup_.fp8_products && IsMegatron(setup_) &&
           layer_.kind == LayerKind::kTransformer &&
           setting_.options.precision == Precision::kBf16;
  }

  KernelTraffic Traffic() const {
    KernelTraffic traffic = prices_.Traffic(ops_);
    if (setting_.options.adapter_rank > 0 && needs_.weights &&
        traffic.forward_kernels > 0) {
      // Two adapters (NeMo's ParallelLinearAdapter): dropout, two products,
      // scale and sum; backward, both gradients of the products and their sums.
      // Under tensor parallelism each gathers twice and copies, and back.
      const bool divided = setting_.parallel.tp > 1;
      traffic.forward_kernels += 2 * (5 + (divided ? 5 : 0));
      traffic.backward_kernels += 2 * (7 + (divided ? 8 : 0));
    }
    return traffic;
  }

  // The time of a pass with what its kernels take of the host and of power.
  Duration PassTime(const std::vector<OpStep>& steps, Duration time,
                    double kernels) const {
    return prices_.WithPowerLimit(steps, prices_.WithLaunches(time, kernels));
  }

  void SetTimes() {
    const StepsCost forward = prices_.Sum(ops_.forward);
    const StepsCost backward = prices_.Sum(ops_.backward);
    StepsCost weight_grad = prices_.Sum(
        setup_.sequence_parallel ? ops_.weight_grad
                                 : WithoutCommunication(ops_.weight_grad));
    StepsCost fused = prices_.Sum(ops_.fused);
    if (!setup_.sequence_parallel) {
      fused = {.time = backward.time + weight_grad.time,
               .gap = backward.gap,
               .wait = backward.wait + weight_grad.wait};
    }
    if (setup_.sum_gradients_apart && own_weights_) {
      const ShardedParameters own = ParametersOnGpu(layer_, setting_.parallel);
      const Duration sum =
          prices_.Memory(kGradientSumBytes * Real(own.dense + own.experts));
      weight_grad.time += sum;
      fused.time += sum;
    }
    const KernelTraffic traffic = Traffic();
    cost_.forward = PassTime(ops_.forward, forward.time + traffic.forward,
                             traffic.forward_kernels);
    cost_.weight_grad = PassTime(ops_.weight_grad, weight_grad.time,
                                 traffic.weight_grad_kernels);
    if (has_backward()) SetBackward(backward, fused, traffic);
    if (PreparesBatch(layer_, setting_)) {
      cost_.forward += prices_.HostTime(kBatchLaunches);
    }
    cost_.backward_gap = std::min(backward.gap, cost_.backward);
    cost_.fused_gap = std::min(fused.gap, cost_.fused);
    if (setup_.paired_forwards) {
      cost_.forward_gap = std::min(forward.gap, cost_.forward);
    }
    cost_.forward_compute =
        prices_.ComputeOf(cost_.forward, forward.wait, traffic.forward_kernels);
    cost_.forward_again = cost_.forward;
  }

  void SetBackward(const StepsCost& backward, const StepsCost& fused,
                   const KernelTraffic& traffic) {
    const double kernels =
        traffic.backward_kernels - traffic.weight_grad_kernels;
    const double fused_kernels =
        traffic.backward_kernels -
        (needs_.weights ? 0 : traffic.weight_grad_kernels);
    cost_.backward =
        PassTime(ops_.backward, backward.time + traffic.backward, kernels);
    cost_.fused =
        PassTime(ops_.fused, fused.time + traffic.backward, fused_kernels);
    cost_.backward_compute =
        prices_.ComputeOf(cost_.backward, backward.wait, kernels);
    cost_.fused_compute =
        prices_.ComputeOf(cost_.fused, fused.wait, fused_kernels);
    if (setup_.recompute_attention) {
      const Duration core = prices_.AttentionCore(ops_.forward);
      cost_.backward += core;
      cost_.fused += core;
    }
  }

  // Also adds the time of operators that are computed again.
  void SetActivations() {
    const Bytes adapters = needs_.weights
                               ? AdapterBytes(layer_, shape_, setting_.parallel,
                                              setting_.options.adapter_rank)
                               : Bytes(0);
    cost_.activations =
        (own_weights_ ? kept_.trained : kept_.frozen + adapters) + more_.kept;
    if (setup_.recompute_attention) {
      cost_.activations -=
          std::min(AttentionCoreBytes(layer_, shape_, setting_.parallel),
                   cost_.activations);
    }
    if (checks_operators_) {
      const Bytes kept_products =
          std::min(OperatorCheckpointBytes(layer_, shape_, setting_.parallel,
                                           setup_.eager_pointwise),
                   cost_.activations);
      computed_again_ = cost_.activations - kept_products;
      cost_.activations = kept_products;
      const Duration time =
          OperatorsAgain(layer_, shape_, setting_, prices_, ops_);
      cost_.backward += time;
      cost_.fused += time;
    }
    // The log-softmax in place of the 16-bit logits.
    cost_.activations += 2 * Fp32Logits();
    cost_.freed_by_backward = cost_.activations;
    if (needs_.weights) {
      cost_.freed_by_backward -= std::min(
          own_weights_ ? kept_.held_for_weight_grad + more_.held_for_weight_grad
                       : adapters,
          cost_.activations);
    }
  }

  // One byte for each logit, if the loss is in fp32.
  Bytes Fp32Logits() const {
    return HasFp32Loss() ? LogitsOnGpu(layer_, shape_, setting_.parallel)
                         : Bytes(0);
  }
  bool HasFp32Loss() const {
    return setup_.fp32_loss && layer_.kind == LayerKind::kLossHead &&
           has_backward();
  }

  void SetScratch() {
    cost_.scratch =
        ScratchOf(layer_, shape_, setting_.parallel, setting_.options.precision,
                  own_weights_, setting_.options.expert_imbalance);
    // Forward: 16-bit logits, their fp32 copy and the log-softmax, which is
    // kept, and which takes the place of the copy where the backward works in
    // place.
    const int64_t loss_scratch = LossScratch(setup_);
    cost_.scratch.forward += (loss_scratch < 8 ? 4 : 8) * Fp32Logits();
    for (Bytes* scratch : {&cost_.scratch.fused, &cost_.scratch.split}) {
      *scratch =
          HasFp32Loss() && setup_.framework != Framework::kTorchTitan
              // Gradients of the loss head's product are made afterwards.
              ? std::max(*scratch, loss_scratch * Fp32Logits())
              : *scratch + computed_again_ + loss_scratch * Fp32Logits();
    }
  }

  void SetGroups() {
    constexpr auto kCore = static_cast<size_t>(OperatorGroup::kCoreAttention);
    for (size_t g = 0; g < cost_.groups.size(); ++g) {
      GroupCost& group = cost_.groups[g];
      const LayerActivations::Part& part = kept_.groups[g];
      group.bytes = own_weights_ ? part.trained : part.frozen;
      if (g == kCore) group.bytes += more_.scores;
      // The framework recomputes it by itself.
      if (checks_operators_ || (setup_.recompute_attention && g == kCore)) {
        group.bytes = Bytes(0);
      }
      if (group.bytes > Bytes(0)) group.again = Again(g);
    }
    // A frozen layer's projections start from norm outputs that are not kept.
    GroupCost& projections =
        cost_.groups[static_cast<size_t>(OperatorGroup::kProjections)];
    if (!own_weights_ && projections.bytes > Bytes(0)) {
      projections.again += Again(static_cast<size_t>(OperatorGroup::kNorms));
    }
  }

  Duration Again(size_t group) const {
    return prices_.Sum(ops_.again[group]).time;
  }

  const LayerSpec& layer_;
  const WorkShape& shape_;
  const GradientNeeds& needs_;
  const LayerSetting& setting_;
  const TrainingSetup& setup_;
  const LayerOps ops_;
  const LayerActivations kept_;
  const FrameworkPrices prices_;
  const bool own_weights_;  // Trained, and not by adapters alone.
  const UnfusedBytes more_;
  const bool checks_operators_;
  Bytes computed_again_{};  // In the backward.
  LayerCost cost_{};
};

}  // namespace

LayerCost PriceLayer(const LayerSpec& layer, const WorkShape& whole,
                     const WorkShape& shape, const GradientNeeds& needs,
                     const LayerSetting& setting) {
  LayerCost cost = LayerPricing(layer, shape, needs, setting).Cost();
  if (setting.copies > 1) {
    cost.forward_flops =
        BuildLayerOps(layer, whole, setting.parallel, needs, setting.options)
            .forward_flops;
  }
  return cost;
}

}  // namespace pipeloom::emulator
