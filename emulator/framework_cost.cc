#include "emulator/framework_cost.h"

#include <algorithm>
#include <cmath>
#include <variant>
#include <vector>

#include "base/numeric.h"
#include "emulator/collective_cost.h"
#include "emulator/layer_memory.h"

namespace pipeloom::emulator {
namespace {

// Attention of kernels that are not made for the device, as a share of its
// bf16 peak (head dimension 128, causal, long, forward and backward together).
// FlashAttention-1: chosen on the long-sequence rows of llm-foundry
// (workloads/validation/llm_foundry.csv); FlashAttention-2: estimates.
struct KernelShare {
  double ampere = 0;
  double hopper = 0;
};
constexpr KernelShare kFlash1{.ampere = 0.337, .hopper = 0.178};
constexpr KernelShare kFlash2{.ampere = 0.59, .hopper = 0.34};
constexpr double kFlashRamp = 300;       // Tokens.
constexpr double kFlashSmallHead = 0.9;  // Below head dimension 128.

// Bytes an element of the score matrix, 16 bit: softmax reads and writes,
// dropout reads and writes with a mask; backward one more read.
constexpr double kScoreForward = 4 + 5;
constexpr double kScoreBackward = 6 + 5;

// Bytes an element beyond those of fused kernels (op_graph.cc), where norm,
// bias, dropout and residual are kernels of their own.
constexpr double kEagerForward = 8;
constexpr double kEagerBackward = 16;
// Of the logits: cast to fp32, maximum, difference, exponent, sum, gather.
constexpr double kEagerLogitsForward = 16;
constexpr double kEagerLogitsBackward = 6;

// Kernels that a layer launches without fusion; a collective is as long for
// the host as two.
constexpr double kKernelsForward = 25;
constexpr double kKernelsBackward = 50;
constexpr double kKernelsACollective = 2;

// How far launching hides behind the GPU: a norm of the two times. A tensor
// group as wide as its node launches slower, as its processes meet across both
// sockets several times a layer. Both after how the time of a layer grows with
// the microbatch on one node (the rows of vTrain that are fitted on, tp 1 to 8;
// workloads/validation/vtrain_single.csv).
constexpr double kLaunchNorm = 3;
constexpr double kWholeNodeLaunch = 1.4;

// Products whose inner or outer size is odd find no vector loads.
constexpr double kUnaligned = 3;

// Products by expert overlap their traffic only in part: the norm that fits
// grouped products of 20 to 256 experts on B200 (SimuMax, Apache-2.0), forward
// and both gradients, best.
constexpr double kGroupedNorm = 1.5;

// fp8 products against bf16 ones: 1265 of 1979 and 864 of 989 TFLOP/s are
// reached on H100 (NVIDIA AIConfigurator); casts are part of the kernels
// before.
constexpr double kFp8Gain = 1.46;

// Fully sharded: a layer's gradients are flattened, cast, scaled and cut.
constexpr double kFlattenBytes = 18;  // Of a parameter.
// Of the time that a collective runs beside compute, so much the compute loses
// to it: multiprocessors and memory bandwidth.
constexpr double kContention = 0.5;
// What shows of the reduction of gradients behind the backward of the last
// microbatch, and of gathering beside the first forward.
constexpr double kDataShown = 0.1;

// Optimizer: read gradient, weight and moments, write weight, moments and
// 16-bit weight; the norm reads gradients once more and clearing writes them.
constexpr double kUpdateBytes = 30 + 10;

// Between the larger of the two (p high) and their sum (p = 1).
double NormOf(double a, double b, double p) {
  if (a <= 0 || b <= 0) return std::max(a, b);
  return std::pow(std::pow(a, p) + std::pow(b, p), 1 / p);
}

}  // namespace

FrameworkCost::FrameworkCost(const JobSpec& job, const TrainingSetup& setup,
                             const OpCostModel* measured)
    : job_(job),
      setup_(setup),
      costs_(job.cluster, job.parallel),
      measured_(measured) {}

double FrameworkCost::Base(const Op& op) const {
  bool known = measured_ != nullptr;
  if (known) {
    if (const auto* c = std::get_if<CollectiveOp>(&op)) {
      known = c->group == GroupKind::kTensor &&
              c->size <= job_.cluster.gpus_per_node;
    } else {
      known = std::holds_alternative<GemmOp>(op) ||
              std::holds_alternative<AttentionOp>(op);
    }
  }
  return ToSeconds(known ? measured_->Cost(op) : costs_.Cost(op));
}

double FrameworkCost::Memory(double bytes) const {
  return ToSeconds(costs_.Cost(MemoryOp{bytes}));
}

double FrameworkCost::OverReplicas(double bytes) const {
  const ParallelLayout& p = job_.parallel;
  const ClusterSpec& cluster = job_.cluster;
  const int64_t replicas = int64_t{p.dp} * p.cp;
  LinkSpec link = cluster.intra_node;
  if (p.num_gpus() > cluster.gpus_per_node) {
    // Neighbouring members share a node and each brings its card, or its share
    // of one. Where cards are shared, the rings of groups with several members
    // on a node all leave it over one: so the measured steps say
    // (docs/validation.md, vtrain_multi).
    const int64_t in_node =
        std::clamp<int64_t>(cluster.gpus_per_node / p.tp, 1, replicas);
    if (in_node < replicas) {
      double rate = cluster.inter_node.bandwidth.bytes_per_second;
      if (cluster.gpus_per_nic() == 1) {
        rate *= Real(in_node);
      } else if (in_node == 1) {
        rate /= cluster.gpus_per_nic();
      } else {
        rate *= Real(in_node) / cluster.gpus_per_node;
      }
      link.latency = cluster.inter_node.latency;
      link.bandwidth.bytes_per_second =
          std::min(cluster.intra_node.bandwidth.bytes_per_second, rate);
    }
  }
  return ToSeconds(RingCollectiveTime(bytes, replicas, link));
}

double FrameworkCost::GroupedSeconds(const GemmOp& op) const {
  const DeviceSpec& device = job_.cluster.device;
  const double compute =
      op.flops() / (device.bf16.flops_per_second * device.gemm_efficiency);
  const double traffic = Memory(op.groups * (2 * op.m * op.k + 2 * op.k * op.n +
                                             op.result_bytes * op.m * op.n));
  return std::pow(
      std::pow(compute, kGroupedNorm) + std::pow(traffic, kGroupedNorm),
      1 / kGroupedNorm);
}

double FrameworkCost::PriceOp(const Op& op, const LayerSpec& layer,
                              const WorkShape& shape) const {
  const double base = Base(op);
  if (const auto* gemm = std::get_if<GemmOp>(&op)) {
    const bool odd = std::fmod(gemm->m, 2) == 1 || std::fmod(gemm->n, 2) == 1 ||
                     std::fmod(gemm->k, 2) == 1;
    if (odd) return base * kUnaligned;
    if (gemm->groups > 1 && layer.ffn.experts > 0) {
      return GroupedSeconds(*gemm);
    }
    if (setup_.fp8 && layer.kind == LayerKind::kTransformer) {
      return base / kFp8Gain;
    }
    return base;
  }
  if (const auto* a = std::get_if<AttentionOp>(&op)) {
    const double length = std::max(a->mean_length, 1.0);
    switch (setup_.attention) {
      case AttentionKernel::kFused:
        return base;
      case AttentionKernel::kFlash1:
      case AttentionKernel::kFlash2: {
        const KernelShare& share =
            setup_.attention == AttentionKernel::kFlash1 ? kFlash1 : kFlash2;
        const DeviceSpec& device = job_.cluster.device;
        const bool hopper = device.fp8.flops_per_second > 0;
        const double rate = device.bf16.flops_per_second *
                            (hopper ? share.hopper : share.ampere) *
                            (a->head_dim < 128 ? kFlashSmallHead : 1);
        return std::max(a->flops / rate * (1 + kFlashRamp / length), base);
      }
      case AttentionKernel::kUnfused: {
        const double heads =
            std::ceil(Real(layer.attention.heads) / job_.parallel.tp);
        const double batch =
            shape.squared_tokens / (length * length) / job_.parallel.cp;
        const double d = Real(a->head_dim);
        const double scores = batch * heads * length * length;
        const GemmOp score{
            .m = length, .n = length, .k = d, .groups = batch * heads};
        const GemmOp value{
            .m = length, .n = d, .k = length, .groups = batch * heads};
        const double products = GroupedSeconds(score) + GroupedSeconds(value);
        return a->backward ? 2 * products + Memory(kScoreBackward * scores)
                           : products + Memory(kScoreForward * scores);
      }
    }
  }
  if (const auto* c = std::get_if<CollectiveOp>(&op)) {
    const ClusterSpec& cluster = job_.cluster;
    const bool ring = c->kind == Collective::kAllGather ||
                      c->kind == Collective::kReduceScatter;
    if (ring && c->group == GroupKind::kTensor &&
        c->size > cluster.gpus_per_node) {
      LinkSpec link = cluster.inter_node;
      link.bandwidth.bytes_per_second =
          std::min(cluster.intra_node.bandwidth.bytes_per_second,
                   link.bandwidth.bytes_per_second * cluster.gpus_per_node /
                       cluster.gpus_per_nic());
      return ToSeconds(RingCollectiveTime(c->bytes, c->size, link));
    }
  }
  return base;
}

double FrameworkCost::Price(const std::vector<OpStep>& steps,
                            const LayerSpec& layer, const WorkShape& shape,
                            bool hides_tensor) const {
  double total = 0;
  for (const OpStep& step : steps) {
    double compute = 0;
    double communication = 0;
    for (const Op& op : step.compute) compute += PriceOp(op, layer, shape);
    for (const Op& op : step.communication) {
      communication += PriceOp(op, layer, shape);
    }
    switch (setup_.overlap) {
      case CommunicationOverlap::kNone:
        total += compute + communication;
        break;
      case CommunicationOverlap::kData:
        total += std::max(compute, communication);
        break;
      case CommunicationOverlap::kAll:
        total += step.compute.empty() && hides_tensor
                     ? kContention * communication
                     : std::max(compute, communication);
        break;
    }
  }
  return total;
}

FrameworkCost::Passes FrameworkCost::LayerPasses(const LayerSpec& layer,
                                                 const WorkShape& shape,
                                                 bool input_grad) const {
  const ParallelLayout& p = job_.parallel;
  const LayerOps ops =
      BuildLayerOps(layer, shape, p, {.weights = true, .input = input_grad});
  Passes passes;
  passes.forward = Price(ops.forward, layer, shape, true);
  if (setup_.sequence_parallel) {
    passes.backward = Price(ops.fused, layer, shape, true);
  } else {
    // The scatter of the input gradient is half of an all-reduce that the
    // weight gradient waits for, and inputs are kept whole, so that nothing is
    // gathered again.
    for (const OpStep& step : ops.backward) {
      const auto* c = step.compute.empty() && !step.communication.empty()
                          ? std::get_if<CollectiveOp>(&step.communication[0])
                          : nullptr;
      passes.backward += c != nullptr && c->kind == Collective::kReduceScatter
                             ? PriceOp(step.communication[0], layer, shape)
                             : Price({step}, layer, shape, true);
    }
    std::vector<OpStep> weight_grad = ops.weight_grad;
    for (OpStep& step : weight_grad) step.communication.clear();
    passes.backward += Price(weight_grad, layer, shape, false);
  }

  const double tokens = Real(LayerTokens(layer, shape)) / p.cp;
  const double hidden = Real(layer.hidden);
  double kernels_forward = 0;
  double kernels_backward = 0;
  if (layer.kind == LayerKind::kTransformer) {
    if (!setup_.sequence_parallel) {
      const double whole = tokens * hidden * (1 - 1.0 / p.tp);
      passes.forward += 2 * Memory(10 * whole);
      passes.backward += 2 * Memory(14 * whole);
    }
    if (setup_.eager_pointwise) {
      const double elements =
          tokens * hidden / (setup_.sequence_parallel ? p.tp : 1);
      passes.forward += Memory(kEagerForward * elements);
      passes.backward += Memory(kEagerBackward * elements);
    }
    kernels_forward = kKernelsForward;
    kernels_backward = kKernelsBackward;
    if (p.tp > 1) {
      kernels_forward += 2 * kKernelsACollective;
      kernels_backward += 2 * kKernelsACollective;
    }
  } else if (layer.kind == LayerKind::kLossHead) {
    if (setup_.eager_pointwise) {
      const double logits = tokens * Real(layer.vocab) / p.tp;
      passes.forward += Memory(kEagerLogitsForward * logits);
      passes.backward += Memory(kEagerLogitsBackward * logits);
    }
    kernels_forward = kKernelsForward;
    kernels_backward = kKernelsBackward;
  }
  const bool whole_node = p.tp > 1 && p.tp >= job_.cluster.gpus_per_node;
  const double host =
      ToSeconds(setup_.host_per_kernel) * (whole_node ? kWholeNodeLaunch : 1);
  passes.forward = NormOf(passes.forward, kernels_forward * host, kLaunchNorm);
  passes.backward =
      NormOf(passes.backward, kernels_backward * host, kLaunchNorm);

  if (layer.kind == LayerKind::kTransformer) {
    if (setup_.recomputation == Recomputation::kFull) {
      passes.backward += passes.forward;
    } else if (setup_.recomputation == Recomputation::kSelective) {
      // The attention core alone, from the kept queries, keys and values.
      for (const OpStep& step : ops.forward) {
        for (const Op& op : step.compute) {
          if (std::holds_alternative<AttentionOp>(op)) {
            passes.backward += PriceOp(op, layer, shape);
          }
        }
      }
    }
  }
  if (setup_.sharding == WeightSharding::kFull) {
    const double parameters = Real(Parameters(layer)) / p.tp;
    const double gather = OverReplicas(2 * parameters);
    const double reduce =
        gather + OverReplicas(setup_.gradient_bytes * parameters);
    passes.backward += Memory(kFlattenBytes * parameters);
    passes.forward = std::max(passes.forward, gather) +
                     kContention * std::min(passes.forward, gather);
    passes.backward = std::max(passes.backward, reduce) +
                      kContention * std::min(passes.backward, reduce);
  }
  return passes;
}

FrameworkStageTime FrameworkCost::StageTime(const Stage& stage,
                                            const WorkShape& shape) const {
  const ModuleSpec& module = job_.model.modules[stage.module];
  Passes sum;
  Passes last;
  for (int32_t i = 0; i < stage.num_layers; ++i) {
    const LayerId id(stage.first_layer.value() + i);
    if (i == 0 || id.value() <= 1 ||
        !(module.layers[id] == module.layers[LayerId(id.value() - 1)])) {
      last = LayerPasses(module.layers[id], shape, id.value() > 0);
    }
    sum.forward += last.forward;
    sum.backward += last.backward;
  }
  return {.forward = Seconds(sum.forward * setup_.stretch),
          .backward = Seconds(sum.backward * setup_.stretch)};
}

Duration FrameworkCost::Epilogue(const Partition& partition,
                                 RankId rank) const {
  double dense = 0;
  double experts = 0;
  for (const Stage& stage : partition.stages) {
    if (stage.rank != rank) continue;
    const ModuleSpec& module = job_.model.modules[stage.module];
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      const ShardedParameters own = ParametersOnGpu(
          module.layers[LayerId(stage.first_layer.value() + i)], job_.parallel);
      dense += Real(own.dense);
      experts += Real(own.experts);
    }
  }
  const double replicas = Real(DenseReplicas(job_.parallel));
  const double expert_replicas = Real(ExpertReplicas(job_.parallel));
  double updated = dense + experts;
  double exposed = 0;
  switch (setup_.sharding) {
    case WeightSharding::kNone:
      exposed = 2 * OverReplicas(setup_.gradient_bytes * dense);
      break;
    case WeightSharding::kZero1:
      exposed =
          OverReplicas(setup_.gradient_bytes * dense) + OverReplicas(2 * dense);
      updated = dense / replicas + experts / expert_replicas;
      break;
    case WeightSharding::kFull:
      updated = (dense + experts) / replicas;
      break;
  }
  if (setup_.overlap != CommunicationOverlap::kNone) exposed *= kDataShown;
  return Seconds((exposed + Memory(kUpdateBytes * updated)) * setup_.stretch);
}

}  // namespace pipeloom::emulator
