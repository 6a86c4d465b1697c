#include "emulator/framework/attention_kernels.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "emulator/cost/device_cycles.h"
#include "emulator/cost/roofline_cost.h"

namespace pipeloom::emulator {
namespace {

// Attention of kernels that are not made for the device, as a share of its
// bf16 peak (head dimension 128, causal, long, forward and backward together).
// FlashAttention-1: chosen on the long-sequence rows of llm-foundry
// (workloads/validation/llm_foundry.csv); FlashAttention-2 on Ampere and
// Blackwell's share of FlashAttention-1: estimates. FlashAttention-2 on Hopper:
// measured on an H200 (docs/evaluation/pytorch.md). On Blackwell, the
// memory-efficient kernel on Hopper and Blackwell: from the differences between
// kernels at equal sizes in workloads/validation/llama32_*.csv; on Ampere: an
// estimate.
struct KernelShare {
  double ampere = 0;
  double hopper = 0;
  double blackwell = 0;
};
constexpr KernelShare kFlash1{
    .ampere = 0.337, .hopper = 0.178, .blackwell = 0.11};
constexpr KernelShare kFlash2{
    .ampere = 0.59, .hopper = 0.295, .blackwell = 0.21};
constexpr KernelShare kEfficient{
    .ampere = 0.38, .hopper = 0.128, .blackwell = 0.064};
// With a mask as a tensor. FlashAttention takes none: on Ampere PyTorch has its
// memory-efficient kernel left. cuDNN's kernels for Hopper and Blackwell take
// one, but are then slower: assumed to run as FlashAttention-2 does there,
// which agrees with three measured steps (docs/evaluation/pytorch.md).
constexpr KernelShare kMasked{.ampere = kEfficient.ampere,
                              .hopper = kFlash2.hopper,
                              .blackwell = kFlash2.blackwell};
constexpr double kFlashRamp = 300;       // Tokens.
constexpr double kFlashSmallHead = 0.9;  // Below head dimension 128.

// fp8 attention relative to bf16: causal, 8192 tokens, means over GB200 and
// GB300 of the benchmark of NVIDIA/cudnn-frontend @3929da2e, MIT: with one
// scale for each tensor, or one for each block of values, as TransformerEngine
// uses it where the recipe scales by block.
struct Fp8Gain {
  double forward = 1;
  double backward = 1;
};
// Head dimension 128: 1.30 and 1.56, 1.09 and 1.24; 1.21 and 1.38, 0.97 and
// 0.98.
constexpr Fp8Gain kTensorGain{.forward = 1.43, .backward = 1.17};
constexpr Fp8Gain kBlockGain{.forward = 1.30, .backward = 0.98};
// Keys of 192, values of 128: 1.51 and 1.71, 1.64 and 1.79; 1.40 and 1.55, 1.25
// and 1.38.
constexpr Fp8Gain kLatentTensorGain{.forward = 1.61, .backward = 1.72};
constexpr Fp8Gain kLatentBlockGain{.forward = 1.48, .backward = 1.32};
// Head dimensions up to 64 were not measured. No gain is assumed for them, as
// exponentials bound them in either precision.

// Multiprocessors of an H100, each of which takes a block of 128 queries of a
// head at a time.
constexpr double kHopperProcessors = 132;
constexpr double kBlockOfQueries = 128;

// Returns the attention with all pairs of tokens, those that it does not see
// too.
AttentionOp AllPairs(AttentionOp op) {
  if (!op.causal && op.window == 0) return op;
  const double widths =
      Real(op.head_dim + (op.value_dim > 0 ? op.value_dim : op.head_dim));
  op.flops = 2 * op.heads * widths * op.tokens * op.mean_length;
  if (op.backward) op.flops *= 2.5;
  op.causal = false;
  op.window = 0;
  return op;
}

// Returns an upper limit of the time of a trainer's forward; Duration::max()
// for calls and devices without measurements. The limit is kMostOfLaw times the
// time by roofline_cost.h, which describes FlashAttention-3 on an H100, with
// the number of blocks rounded up to whole waves. Measured times of cuDNN on an
// H200 at full power (workloads/measured/h200-sxm/attention.csv) are 0.8 to 1.2
// times that, as means over calls with the same length and head dimension.
constexpr double kMostOfLaw = 1.2;
Duration MostOnHopper(const AttentionOp& op, const DeviceSpec& device) {
  const bool is_hopper =
      !IsBlackwell(device) && OperationsPerCycle(device) == kHopperOperations;
  const int64_t value_dim = op.value_dim > 0 ? op.value_dim : op.head_dim;
  if (!is_hopper || op.backward || op.window > 0 || op.head_dim > 128 ||
      value_dim != op.head_dim || op.heads <= 0 || op.tokens <= 0 ||
      op.mean_length <= 0) {
    return Duration::max();
  }
  const double rate = device.bf16.flops_per_second *
                      device.attention_efficiency *
                      AttentionShapeFactor(op, device);
  const double waves = op.heads * op.tokens / op.mean_length *
                       std::ceil(op.mean_length / kBlockOfQueries) /
                       kHopperProcessors;
  return Seconds(kMostOfLaw * op.flops / rate * std::ceil(waves) / waves) +
         device.kernel_overhead;
}

}  // namespace

bool RunsFp8Attention(const TrainingSetup& setup, const DeviceSpec& device) {
  return setup.fp8_attention && setup.fp8_products &&
         setup.attention == AttentionKernel::kFused && IsBlackwell(device);
}

double Fp8AttentionGain(const AttentionOp& op, Fp8Recipe recipe) {
  if (op.head_dim <= 64) return 1;
  const bool blocks = recipe == Fp8Recipe::kBlocks;
  const Fp8Gain& gain = HasLatentHeads(op)
                            ? (blocks ? kLatentBlockGain : kLatentTensorGain)
                            : (blocks ? kBlockGain : kTensorGain);
  return op.backward ? gain.backward : gain.forward;
}

FusedTime FusedAttention(const AttentionOp& op, const DeviceSpec& device,
                         const OpCostModel& costs) {
  const OpPrice price = costs.Price(op);
  if (price.source == CostSource::kRoofline) return {price.time};
  FusedTime fused{price.time, MostOnHopper(op, device)};
  // A causal kernel leaves out what another one computes.
  if (op.causal) fused.alone = std::min(price.time, costs.Cost(AllPairs(op)));
  return fused;
}

Duration ForeignAttention(const AttentionOp& op, AttentionKernel attention,
                          const DeviceSpec& device, const OpCostModel& costs) {
  const KernelShare& kernel = attention == AttentionKernel::kFlash1   ? kFlash1
                              : attention == AttentionKernel::kFlash2 ? kFlash2
                              : attention == AttentionKernel::kMasked
                                  ? kMasked
                                  : kEfficient;
  const double share = IsBlackwell(device)               ? kernel.blackwell
                       : device.fp8.flops_per_second > 0 ? kernel.hopper
                                                         : kernel.ampere;
  const double length = std::max(op.mean_length, 1.0);
  // These kernels are not held back by the rate of products: where that is
  // reduced (H20) or low (L40S), they reach it.
  const double peak = std::max(device.bf16.flops_per_second,
                               device.fp8.flops_per_second > 0
                                   ? kHopperOperations * CyclesPerSecond(device)
                                   : 0);
  const double rate = peak * share * (op.head_dim < 128 ? kFlashSmallHead : 1);
  AttentionOp run = op;
  if (attention == AttentionKernel::kMasked) run = AllPairs(op);
  const FusedTime own = FusedAttention(run, device, costs);
  return std::max(Seconds(run.flops / rate * (1 + kFlashRamp / length)),
                  std::min(own.alone, own.most));
}

}  // namespace pipeloom::emulator
