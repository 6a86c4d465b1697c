#include "emulator/framework/framework_price.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/numeric.h"
#include "emulator/cost/device_cycles.h"
#include "emulator/framework/attention_kernels.h"
#include "emulator/framework/product_alignment.h"
#include "emulator/framework/score_kernels.h"

namespace pipeloom::emulator {
namespace {

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
