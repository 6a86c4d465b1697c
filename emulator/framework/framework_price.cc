#include "emulator/framework/framework_price.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/numeric.h"
#include "emulator/cost/device_cycles.h"
#include "emulator/framework/attention_kernels.h"
#include "emulator/framework/cast_launches.h"
#include "emulator/framework/expert_launches.h"
#include "emulator/framework/product_alignment.h"
#include "emulator/framework/pytorch_traffic.h"
#include "emulator/framework/score_kernels.h"
#include "emulator/ops/layer_builder.h"
#include "emulator/ops/layer_tokens.h"

namespace pipeloom::emulator {
namespace {

// Bytes per element in addition to those of fused kernels (emulator/ops), if
// norm, bias, dropout and residual are separate kernels.
constexpr double kEagerForward = 8;
constexpr double kEagerBackward = 16;
// The same of the kernels that XLA makes, half of them on a tensor-parallel
// GPU's part of a layer: 420 bytes are the mean of what GPT of 126M and 5B,
// Llama 2 7B and ViT-G/14 ask for by themselves (docs/evaluation/unseen.md), a
// third of them forward.
constexpr double kXlaForward = 140;
constexpr double kXlaBackward = 280;
// Bytes per logit: cast to fp32, maximum, difference, exponent, sum, gather.
constexpr double kEagerLogitsForward = 16;
constexpr double kEagerLogitsBackward = 6;

// Bytes per element of kernels that are not fused.
struct KernelBytes {
  double forward = 0;
  double backward = 0;
};
// A loss on an fp32 copy of the logits.
constexpr KernelBytes kEagerLoss{.forward = 14, .backward = 28};
// The same of Megatron-Core without its fused loss (tensor_parallel/
// cross_entropy.py): its maximum (4), exponents (8) and their sum (4), less the
// 8 of a fused loss; backward, the cast to 16 bits, less 6. At the rate of
// strided kernels: the fp32 copy (6), the difference (8) and the softmax (8),
// whose divisor is broadcast; backward, the scaled gradient (8).
constexpr KernelBytes kFp32Loss{.forward = 8, .backward = 0};
constexpr KernelBytes kFp32LossStrided{.forward = 22, .backward = 8};

// Norm and residual of a block, bytes per element (NormAndResidual).
constexpr double kNormForward = 10;
constexpr double kNormBackward = 14;
// The same of its modulation (Modulate).
constexpr double kModulatedForward = 8;
constexpr double kModulatedBackward = 12;

// Kernels that a layer launches without fusion; a collective takes the host as
// long as two.
constexpr double kKernelsForward = 25;
constexpr double kKernelsBackward = 50;
constexpr double kKernelsACollective = 2;
// A further step of a ring of keys and values launches, forward: a transfer,
// copies of halves, attention and two corrections; backward: a transfer,
// copies, attention and three sums (TransformerEngine, context_parallel.py).
constexpr double kRingStepForward = 7;
constexpr double kRingStepBackward = 9;
// An all-to-all of queries, keys, values and outputs launches two copies and an
// exchange for each, and back.
constexpr double kAllToAllKernels = 12;
// Kernels of a token mixer in place of attention's six, counted in the code of
// Megatron-Core, mamba_ssm and flash-linear-attention. State space, forward:
// the six of the scan, norm, copies of its small parameters; backward: those
// six again, fourteen gradients and their casts and sums. Delta net, forward:
// convolution, norm, gates, copies of queries, keys, values and gate, six of
// the chunks, norm and gate.
struct MixerKernels {
  double forward = 0;
  double backward = 0;
};
constexpr MixerKernels kStateSpaceKernels{.forward = 8, .backward = 20};
constexpr MixerKernels kDeltaNetKernels{.forward = 14, .backward = 24};
// Replaying a layer's graph and copying its input take the host as long as this
// number of kernels: chosen on the fit rows of workloads/validation/mlperf.csv.
constexpr double kKernelsAReplay = 20;

// Bytes of an element that is cast ahead of a gather: 4 bits with a scale for
// 16 elements in NVFP4, for which TransformerEngine gathers only the operand
// that the product reads (pytorch/distributed.py, _all_gather_nvfp4).
double GatheredBytes(const TrainingSetup& setup, const DeviceSpec& device) {
  const bool fp4 = setup.fp8_recipe == Fp8Recipe::kFp4 ||
                   setup.fp8_recipe == Fp8Recipe::kFp4Plain;
  return fp4 && IsBlackwell(device) ? 0.5 + 1.0 / 16 : 1;
}

// How well the GPU hides launching: a norm of the two times. Processes of a
// tensor group as wide as its node, which meet several times a layer, launch
// slower. Both were chosen on vtrain_single (workloads/validation), which
// turned out to be predictions; measured runs are further off with 10 and with
// 1 in their place (docs/evaluation/emulator.md, "vTrain on one node").
constexpr double kLaunchNorm = 3;
constexpr double kWholeNodeLaunch = 1.4;

// Layers without TransformerEngine add the bias of queries, keys and values in
// a kernel of its own (Megatron-LM, tensor_parallel/layers.py): bytes an
// element.
constexpr double kBiasSum = 2 + 2;

// A rotation of queries and keys that also multiplies by a factor runs as
// operators of PyTorch in Megatron-Core (rope_utils.py: a factor is not
// supported by TransformerEngine's kernel). Bytes an element in addition to the
// 4 of that kernel. Forward: half is negated (2), joined with the other half
// (4), two products (8), their sum (6), joined with the part that is not
// rotated, which is empty (4). Backward: two products (8), half negated (2),
// halves joined (4), summed (6); zeros for the empty part (2), summed (6).
constexpr KernelBytes kScaledRotary{.forward = 24 - 4, .backward = 28 - 4};

// Where one kernel runs a product of experts and their activation (cuDNN's, in
// TransformerEngine's fused operations for MXFP8 on Blackwell): bytes that
// kernels of their own move in addition, an element of the experts' width.
// Forward: activation (6) and cast (4) less their results (2). Backward: the
// gradient (2), activation (10) and cast (8) less gate, input and results (8).
constexpr KernelBytes kFusedActivation{.forward = 8, .backward = 12};

// Products by expert overlap their traffic only in part: the norm that best
// fits grouped products of 20 to 256 experts on B200 (SimuMax, Apache-2.0),
// forward and both gradients.
constexpr double kGroupedNorm = 1.5;

// fp8 products relative to bf16 ones on H100: 1265 of 1979 and 864 of 989
// TFLOP/s are reached (NVIDIA AIConfigurator); casts are part of the kernels
// before.
constexpr double kFp8Gain = 1.46;
// Power and operands keep fp8 products on H100 below their peak. An H20 is the
// same chip with a quarter of the rate a multiprocessor, so that neither limits
// it: it gains as its peaks say. An L40S, which has graphics memory and less
// bandwidth than this, is limited by power.
constexpr double kBandwidthOfHbm = 2e12;
// In torchtitan (torchao) casts are kernels of their own: an operand is read
// for its largest value, read again and written in fp8; a weight gradient reads
// and writes both operands in fp8, turned. Bytes per element.
constexpr double kTensorCast = 2 + 2 + 1;
constexpr double kTurned = 2;
// The same from Blackwell on, for fp8 and for NVFP4: a gain that grows with the
// inner dimension k as k / (k + kGainRamp), and bytes per element to cast an
// operand with a scale for each block: read in 16 bits, written by rows and by
// columns; NVFP4 also rotates and rounds gradients at random. Chosen on half of
// the configurations of dense models in workloads/validation/nemo.csv and
// bridge_precision.csv (docs/validation.md).
constexpr double kBlackwellFp8Gain = 2.0;
constexpr double kBlackwellFp4Gain = 3.4;
constexpr double kGainRamp = 1200;
constexpr double kBlockCast = 4;
constexpr double kFp4Cast = 8;
// NVFP4 without rotation and random rounding casts as MXFP8 does. Its gain was
// chosen on the fit rows of workloads/validation/mlperf.csv.
constexpr double kPlainFp4Gain = 4.0;

// Share of an overlapped collective's time that compute loses to it:
// multiprocessors and memory bandwidth.
constexpr double kContention = 0.5;
// Share of the multiprocessors that an overlapped dispatch takes from compute:
// 20 to 24 of 132 (DeepEP), 32 of 148 (HybridEP).
constexpr double kDispatchShare = 0.2;

// Returns a value between the larger of the two (p high) and their sum (p = 1).
double NormOf(double a, double b, double p) {
  if (a <= 0 || b <= 0) return std::max(a, b);
  return std::pow(std::pow(a, p) + std::pow(b, p), 1 / p);
}

double HeadsOnGpu(const LayerSpec& layer, const ParallelLayout& parallel) {
  return Real(CeilDiv(layer.attention.heads, int64_t{parallel.tp}));
}

double QueryKeyValueWidth(const LayerSpec& layer,
                          const ParallelLayout& parallel) {
  const AttentionSpec& a = layer.attention;
  return HeadsOnGpu(layer, parallel) * Real(a.head_dim) +
         Real(CeilDiv(a.kv_heads, int64_t{parallel.tp})) *
             Real(a.head_dim + a.value_width());
}

}  // namespace

FrameworkPrices::FrameworkPrices(const LayerSpec& layer, const WorkShape& shape,
                                 const ParallelLayout& parallel,
                                 const TrainingSetup& setup,
                                 const ClusterSpec& cluster,
                                 const DeviceSpec& device,
                                 const OpCostModel& costs,
                                 const MicrobatchSetting& microbatches)
    : layer_(layer),
      shape_(shape),
      parallel_(parallel),
      setup_(setup),
      cluster_(cluster),
      device_(device),
      costs_(costs),
      microbatches_(microbatches) {}

Duration FrameworkPrices::Memory(double bytes) const {
  if (bytes <= 0) return kZero;
  const double seconds = bytes / (device_.memory_bandwidth.bytes_per_second *
                                  device_.memory_efficiency);
  return std::max(Duration(static_cast<int64_t>(std::ceil(seconds * 1e9))),
                  device_.kernel_overhead);
}

Duration FrameworkPrices::LowPrecision(const GemmOp& op, Duration base) const {
  if (!IsBlackwell(device_)) {
    const bool reduced =
        OperationsPerCycle(device_) < kHopperOperations &&
        device_.memory_bandwidth.bytes_per_second > kBandwidthOfHbm;
    const double gain =
        reduced ? device_.fp8.flops_per_second / device_.bf16.flops_per_second
                : kFp8Gain;
    const Duration time = Seconds(ToSeconds(base) / gain);
    if (setup_.framework != Framework::kTorchTitan) return time;
    return time + Memory(op.pass == QueryPass::kWeightGrad
                             ? kTurned * op.groups * (op.m * op.k + op.k * op.n)
                             : kTensorCast * op.groups * op.m * op.k);
  }
  const bool fp4 = setup_.fp8_recipe == Fp8Recipe::kFp4;
  const double most = fp4 ? kBlackwellFp4Gain
                      : setup_.fp8_recipe == Fp8Recipe::kFp4Plain
                          ? kPlainFp4Gain
                          : kBlackwellFp8Gain;
  const double gain = most * op.k / (op.k + kGainRamp);
  const Duration time = Seconds(ToSeconds(base) / std::max(gain, 1.0));
  // A weight gradient takes the operands that the other products have cast.
  if (setup_.fp8_recipe == Fp8Recipe::kTensor ||
      op.pass == QueryPass::kWeightGrad) {
    return time;
  }
  return time + Memory((fp4 ? kFp4Cast : kBlockCast) * op.groups * op.m * op.k);
}

double FrameworkPrices::GroupedSeconds(const GemmOp& op) const {
  const double compute =
      op.flops() / (device_.bf16.flops_per_second * device_.gemm_efficiency);
  const double traffic =
      ToSeconds(Memory(op.groups * (2 * op.m * op.k + 2 * op.k * op.n +
                                    op.result_bytes * op.m * op.n)));
  return NormOf(compute, traffic, kGroupedNorm);
}

Duration FrameworkPrices::UnalignedTime(const GemmOp& op) const {
  // An embedding of patches is a convolution.
  if (op.groups > 1 || layer_.kind == LayerKind::kLinears ||
      (layer_.kind == LayerKind::kLossHead && setup_.pads_vocabulary)) {
    return kZero;
  }
  return UnalignedProductTime(op, device_);
}

Duration FrameworkPrices::Gemm(const GemmOp& given) const {
  GemmOp op = given;
  op.precision = RunsIn(given);
  const OpPrice base = costs_.Price(op);
  if (op.flops() <= 0) return base.time;
  const Duration unaligned = UnalignedTime(op);
  if (unaligned > kZero) return std::max(base.time, unaligned);
  const bool low = setup_.fp8_products &&
                   layer_.kind == LayerKind::kTransformer &&
                   op.precision == Precision::kBf16 && !op.keeps_precision &&
                   device_.fp8.flops_per_second > 0;
  if (op.groups > 1 && layer_.ffn.experts > 0) {
    const Duration time =
        base.source == CostSource::kRoofline && op.precision == Precision::kBf16
            ? Seconds(GroupedSeconds(op))
            : base.time;
    return InStep(op, time, low);
  }
  return InStep(op, base.time, low);
}

Duration FrameworkPrices::Attention(const AttentionOp& op) const {
  if (op.flops <= 0) return costs_.Cost(op);
  if (setup_.attention == AttentionKernel::kFused) {
    const FusedTime fused = FusedAttention(op, device_, costs_);
    if (RunsFp8Attention(setup_, device_)) {
      return Seconds(ToSeconds(fused.alone) /
                     Fp8AttentionGain(op, setup_.fp8_recipe));
    }
    return std::min(fused.most,
                    Sustained(fused.alone, op.flops,
                              device_.sustained_attention, device_.bf16));
  }
  const double length = std::max(op.mean_length, 1.0);
  if (setup_.attention == AttentionKernel::kUnfused) {
    const double groups = std::max(op.heads, 1.0) * op.tokens / length;
    const double d = Real(op.head_dim);
    const double scores = groups * length * length;
    const GemmOp score{.m = length, .n = length, .k = d, .groups = groups};
    const GemmOp value{.m = length, .n = d, .k = length, .groups = groups};
    const double products = GroupedSeconds(score) + GroupedSeconds(value);
    const ScoreKernels kernels =
        ScoreKernelsOf(layer_, shape_, parallel_, setup_);
    return op.backward
               ? Seconds(2 * products) + Memory(kernels.backward_bytes * scores)
               : Seconds(products) + Memory(kernels.forward_bytes * scores);
  }
  return ForeignAttention(op, setup_.attention, device_, costs_);
}

Duration FrameworkPrices::Cost(const Op& op) const {
  if (const auto* gemm = std::get_if<GemmOp>(&op)) return Gemm(*gemm);
  if (const auto* attention = std::get_if<AttentionOp>(&op)) {
    return Attention(*attention);
  }
  const auto* collective = std::get_if<CollectiveOp>(&op);
  if (collective != nullptr && setup_.fp8_gathers && setup_.fp8_products &&
      device_.fp8.flops_per_second > 0 &&
      layer_.kind == LayerKind::kTransformer &&
      collective->group == GroupKind::kTensor &&
      collective->kind == Collective::kAllGather) {
    CollectiveOp narrow = *collective;
    narrow.bytes *= GatheredBytes(setup_, device_) / 2;
    return costs_.Cost(narrow);
  }
  return costs_.Cost(op);
}

StepsCost FrameworkPrices::Sum(const std::vector<OpStep>& steps) const {
  StepsCost total;
  Duration dispatched = kZero;  // Overlaps with another microbatch.
  for (const OpStep& step : steps) {
    Duration compute = kZero;
    Duration communication = kZero;
    for (const Op& op : step.compute) compute += Cost(op);
    for (const Op& op : step.communication) communication += Cost(op);
    // The scatter of an input gradient without sequence parallelism is half of
    // an all-reduce that the next product waits for.
    const auto* c = step.communication.empty()
                        ? nullptr
                        : std::get_if<CollectiveOp>(&step.communication[0]);
    const bool waited_for = !setup_.sequence_parallel && c != nullptr &&
                            c->kind == Collective::kReduceScatter;
    if (setup_.overlap_dispatch && c != nullptr &&
        c->group == GroupKind::kExpert) {
      total.time += compute;
      dispatched += communication;
      continue;
    }
    if (setup_.overlap == CommunicationOverlap::kNone) {
      total.time += compute + communication;
      continue;
    }
    if (setup_.overlap == CommunicationOverlap::kAll && step.compute.empty() &&
        !waited_for &&
        (c == nullptr || (c->group != GroupKind::kExpert && !c->exposed))) {
      // Overlapped already: this is compute that is lost to it, and no gap.
      const Duration lost = Seconds(kContention * ToSeconds(communication));
      total.time += lost;
      total.wait += lost;
      continue;
    }
    total.time += costs_.Overlap(compute, communication);
    AddWait(compute, communication, costs_, &total);
  }
  if (dispatched > kZero) {
    // Other compute that overlaps with it is not there for other gaps.
    total.wait += dispatched;
    const double shown =
        kDispatchShare + microbatches_.alone * (1 - kDispatchShare);
    total.time = std::max(total.time, dispatched) +
                 Seconds(shown * ToSeconds(std::min(total.time, dispatched)));
  }
  return total;
}

Duration FrameworkPrices::AttentionCore(
    const std::vector<OpStep>& steps) const {
  Duration time = kZero;
  for (const OpStep& step : steps) {
    for (const Op& op : step.compute) {
      if (std::holds_alternative<AttentionOp>(op)) time += Cost(op);
    }
  }
  return time;
}

KernelTraffic FrameworkPrices::ConvolutionTraffic() const {
  KernelTraffic traffic;
  if (!setup_.eager_pointwise || setup_.framework != Framework::kPyTorch) {
    return traffic;
  }
  const double tokens = Real(LayerTokens(layer_, shape_)) /
                        Real(int64_t{parallel_.tp} * parallel_.cp);
  const EagerPasses bytes = ConvolutionBytes(layer_, tokens);
  traffic.forward = Memory(bytes.forward.streamed);
  traffic.backward = Memory(bytes.backward.streamed);
  if (Graphs() == CudaGraphs::kIteration) return traffic;
  const EagerLaunches launches = ConvolutionLaunches(layer_);
  traffic.forward_kernels = launches.forward;
  traffic.backward_kernels = launches.backward;
  return traffic;
}

KernelTraffic FrameworkPrices::Traffic(const LayerOps& ops) const {
  KernelTraffic traffic;
  const bool transformer = layer_.kind == LayerKind::kTransformer;
  if (layer_.kind == LayerKind::kConvolutions) return ConvolutionTraffic();
  if (!transformer && layer_.kind != LayerKind::kLossHead) return traffic;
  const double tokens = Real(LayerTokens(layer_, shape_)) / parallel_.cp;
  const double hidden = Real(layer_.hidden);
  const auto add = [&](double forward_bytes, double backward_bytes) {
    traffic.forward += Memory(forward_bytes);
    traffic.backward += Memory(backward_bytes);
  };
  const auto add_strided = [&](const KernelBytes& bytes, double elements) {
    const double seconds = elements / StridedRate(device_);
    traffic.forward += Seconds(bytes.forward * seconds);
    traffic.backward += Seconds(bytes.backward * seconds);
  };
  if (transformer && layer_.biases &&
      setup_.attention != AttentionKernel::kFused) {
    add(kBiasSum * tokens * QueryKeyValueWidth(layer_, parallel_), 0);
  }
  const bool scales_apart = transformer && layer_.attention.scaled_rotary &&
                            (setup_.framework == Framework::kMegatronCore ||
                             setup_.framework == Framework::kMegatronBridge);
  if (scales_apart) {
    const AttentionSpec& a = layer_.attention;
    const double elements = tokens * Real(a.head_dim) *
                            (HeadsOnGpu(layer_, parallel_) +
                             Real(CeilDiv(a.kv_heads, int64_t{parallel_.tp}))) /
                            kPyTorchShare;
    add(kScaledRotary.forward * elements, kScaledRotary.backward * elements);
  }
  if (transformer && layer_.ffn.experts > 0 && layer_.ffn.gated &&
      setup_.fused_experts && setup_.fp8_products &&
      setup_.fp8_recipe == Fp8Recipe::kBlocks && IsBlackwell(device_)) {
    const double elements = tokens / parallel_.tp *
                            Real(layer_.ffn.experts_per_token) *
                            Real(layer_.ffn.expert_hidden);
    traffic.forward -= Memory(kFusedActivation.forward * elements);
    traffic.backward -= Memory(kFusedActivation.backward * elements);
  }
  if (transformer && !setup_.sequence_parallel && parallel_.tp > 1) {
    // Norms and residuals of both blocks work on the tokens of the other GPUs
    // too.
    const double whole = tokens * hidden * (1 - 1.0 / parallel_.tp);
    const bool modulated = layer_.modulation.vectors > 0;
    for (int block = 0; block < std::min(BlocksOf(layer_), 2); ++block) {
      add(kNormForward * whole, kNormBackward * whole);
      if (modulated) add(kModulatedForward * whole, kModulatedBackward * whole);
    }
  }
  if (setup_.xla_pointwise && transformer) {
    const double elements = tokens * hidden * (1 + 1.0 / parallel_.tp) / 2;
    add(kXlaForward * elements, kXlaBackward * elements);
  } else if (setup_.eager_pointwise &&
             setup_.framework == Framework::kPyTorch &&
             (!transformer || layer_.modulation.vectors > 0 ||
              (layer_.ffn.gated && layer_.cross_attention.heads == 0))) {
    const EagerPasses bytes =
        PyTorchBytes(layer_, tokens, parallel_, setup_.fp32_loss);
    add(bytes.forward.streamed, bytes.backward.streamed);
    add_strided({bytes.forward.strided, bytes.backward.strided}, 1);
  } else if (setup_.eager_pointwise || setup_.xla_pointwise) {
    if (transformer) {
      const double elements =
          tokens * hidden / (setup_.sequence_parallel ? parallel_.tp : 1);
      add(kEagerForward * elements, kEagerBackward * elements);
      if (layer_.ffn.experts > 0 && parallel_.ep == 1) {
        const EagerPasses rows = IndexedRowBytes(layer_, tokens, parallel_);
        add(rows.forward.streamed / kPyTorchShare,
            rows.backward.streamed / kPyTorchShare);
      }
    } else if (!setup_.fp32_loss) {
      const double logits = tokens * Real(layer_.vocab) / parallel_.tp;
      add(kEagerLogitsForward * logits, kEagerLogitsBackward * logits);
    }
  }
  if (!transformer && setup_.fp32_loss &&
      setup_.framework != Framework::kPyTorch) {
    const bool compiled = setup_.framework == Framework::kTorchTitan;
    const KernelBytes& loss = compiled ? kEagerLoss : kFp32Loss;
    const double logits = tokens * Real(layer_.vocab) / parallel_.tp;
    add(loss.forward * logits, loss.backward * logits);
    if (!compiled) add_strided(kFp32LossStrided, logits);
  }
  // A layer of one block launches half as many.
  const double blocks = transformer && BlocksOf(layer_) < 2 ? 0.5 : 1;
  const MixerKernels mixer = !transformer                   ? MixerKernels{}
                             : layer_.state_space.heads > 0 ? kStateSpaceKernels
                             : layer_.delta_net.value_heads > 0
                                 ? kDeltaNetKernels
                                 : MixerKernels{};
  traffic.forward_kernels = blocks * kKernelsForward + mixer.forward;
  traffic.backward_kernels = blocks * kKernelsBackward + mixer.backward;
  if (scales_apart) {
    const EagerLaunches rotation = RotationLaunches(
        layer_.attention, microbatches_.packed ? shape_.sequences : 0,
        setup_.host_per_kernel);
    traffic.forward_kernels += rotation.forward;
    traffic.backward_kernels += rotation.backward;
  }
  if (transformer) {
    const EagerLaunches casts = CastLaunches(layer_, setup_);
    traffic.forward_kernels += casts.forward;
    traffic.backward_kernels += casts.backward;
  }
  const bool is_eager = transformer && setup_.eager_pointwise &&
                        setup_.framework == Framework::kPyTorch;
  if (is_eager && Graphs() == CudaGraphs::kNone) {
    const EagerLaunches launches = PyTorchLaunches(layer_, tokens);
    traffic.forward_kernels = launches.forward;
    traffic.backward_kernels = launches.backward;
  } else if (transformer && layer_.ffn.experts > 0) {
    const EagerLaunches experts =
        ExpertLaunches(layer_.ffn, parallel_.ep, setup_);
    if (Graphs() == CudaGraphs::kLayers) {
      traffic.forward_kernels = traffic.backward_kernels = 0;
    }
    traffic.forward_kernels += experts.forward;
    traffic.backward_kernels += experts.backward;
    if (setup_.overlap_dispatch && parallel_.ep > 1 &&
        Graphs() == CudaGraphs::kNone) {
      const EagerLaunches parts = OverlappedDispatchLaunches();
      traffic.forward_kernels += parts.forward;
      traffic.backward_kernels += parts.backward;
    }
  } else if (Graphs() == CudaGraphs::kLayers && transformer) {
    traffic.forward_kernels = traffic.backward_kernels = kKernelsAReplay;
    return traffic;
  }
  if (Graphs() == CudaGraphs::kIteration) {
    traffic.forward_kernels = traffic.backward_kernels = 0;
    return traffic;
  }
  if (transformer && parallel_.cp > 1 && Graphs() == CudaGraphs::kNone &&
      HasMixer(layer_)) {
    if (layer_.attention.kind == AttentionKind::kNone) {
      traffic.forward_kernels += kAllToAllKernels;
      traffic.backward_kernels += kAllToAllKernels;
    } else if (parallel_.context == ContextParallelism::kRing) {
      traffic.forward_kernels += kRingStepForward * (parallel_.cp - 1);
      traffic.backward_kernels += kRingStepBackward * (parallel_.cp - 1);
    } else if (parallel_.context == ContextParallelism::kAllToAll) {
      traffic.forward_kernels += kAllToAllKernels;
      traffic.backward_kernels += kAllToAllKernels;
    }
  }
  if (transformer && setup_.attention == AttentionKernel::kUnfused &&
      layer_.attention.kind != AttentionKind::kNone) {
    const ScoreKernels kernels =
        ScoreKernelsOf(layer_, shape_, parallel_, setup_);
    traffic.forward_kernels += kernels.more_forward_kernels;
    traffic.backward_kernels += kernels.more_backward_kernels;
  }
  if (transformer && parallel_.tp > 1) {
    traffic.forward_kernels += 2 * blocks * kKernelsACollective;
    traffic.backward_kernels += 2 * blocks * kKernelsACollective;
  }
  for (const OpStep& step : ops.weight_grad) {
    traffic.weight_grad_kernels +=
        Real(static_cast<int64_t>(step.compute.size()));
  }
  traffic.weight_grad_kernels =
      std::min(traffic.weight_grad_kernels, traffic.backward_kernels);
  return traffic;
}

Duration FrameworkPrices::WithLaunches(Duration time, double kernels) const {
  if (setup_.host_per_kernel == kZero || kernels <= 0 || time <= kZero) {
    return time;
  }
  return Seconds(
      NormOf(ToSeconds(time), ToSeconds(HostTime(kernels)), kLaunchNorm));
}

Duration FrameworkPrices::HostTime(double kernels) const {
  const bool whole_node =
      parallel_.tp > 1 && parallel_.tp >= cluster_.gpus_per_node;
  return Seconds(kernels * ToSeconds(setup_.host_per_kernel) *
                 (whole_node ? kWholeNodeLaunch : 1));
}

Duration FrameworkPrices::OverlapWithSharding(Duration pass,
                                              Duration moved) const {
  if (setup_.overlap == CommunicationOverlap::kNone) return pass + moved;
  return std::max(pass, moved) +
         Seconds(kContention * ToSeconds(std::min(pass, moved)));
}

}  // namespace pipeloom::emulator
