#include "emulator/cost/roofline_cost.h"

#include <algorithm>
#include <cmath>

#include "base/overloaded.h"
#include "emulator/cost/device_cycles.h"
#include "emulator/network/collective_cost.h"
#include "emulator/network/group_placement.h"

namespace pipeloom::emulator {
namespace {

// GEMM, fitted to the bf16 table of NVIDIA AIConfigurator for H100 (8192^3:
// 783 TFLOP/s, 8192x8192x1024: 714, and 128..1024 x 4096 x 4096: 267, 459,
// 681, 758); every row within 7 % of 0.8 * 989 times the factor.
// A result of few tiles leaves multiprocessors idle; a short inner dimension
// leaves its pipeline's filling visible.
constexpr double kTile = 128;
constexpr double kTilesToFill = 70;
constexpr double kInnerRamp = 96;

// Attention, fitted to the FlashAttention-3 benchmark on H100 (forward, head
// dimension 128, full: 467, 565, 625, 638, 646, 648 TFLOP/s at 512..16384;
// causal: 292, 423, 521, 579, 602, 616; backward 561 at 16384).
constexpr double kFullRamp = 150;    // Tokens.
constexpr double kCausalRamp = 530;  // Tokens.
constexpr double kBackwardFactor = 0.87;

// On Blackwell, cuDNN has a kernel for keys of 192 and values of 128 (latent
// attention): its rate relative to that of 128 and 128, causal, means over
// 2,048 to 32,768 tokens on GB200 and GB300 (NVIDIA/cudnn-frontend @3929da2e,
// MIT; 0.93 to 1.07 and 0.85 to 0.96).
constexpr double kLatentForward = 1.0;
constexpr double kLatentBackward = 0.9;
// Exponentials, which a multiprocessor computes as slowly as Hopper's does,
// bound narrow heads: 64 relative to 128 on B200, causal, 2,048 to 16,384
// tokens, 64 and more heads of all sequences (NVIDIA AIConfigurator; 0.60 to
// 0.62, on H100 0.75 to 0.82).
constexpr double kNarrow = 0.77;
constexpr double kNarrowOnBlackwell = 0.61;

// Kernels exist for head dimensions 64, 128 and 256; between them the next
// larger is used and the padding is wasted.
double HeadFactor(const AttentionOp& op, const DeviceSpec& device) {
  if (IsBlackwell(device) && HasLatentHeads(op)) {
    return op.backward ? kLatentBackward : kLatentForward;
  }
  const auto d = static_cast<double>(op.head_dim);
  if (op.head_dim <= 64) {
    return (IsBlackwell(device) ? kNarrowOnBlackwell : kNarrow) * d / 64;
  }
  if (op.head_dim <= 128) return d / 128;
  return 1.15 * std::min(d / 256, 1.0);
}

double OperandBytes(Precision precision) {
  switch (precision) {
    case Precision::kBf16:
      return 2;
    case Precision::kFp8:
      return 1;
    case Precision::kFp32:
      return 4;
  }
  return 2;
}

// TF32 runs at half the rate of bf16 on every device with both; a device
// without fp8 units runs those products in bf16.
double PeakRate(const DeviceSpec& device, Precision precision) {
  const double bf16 = device.bf16.flops_per_second;
  switch (precision) {
    case Precision::kBf16:
      return bf16;
    case Precision::kFp8:
      return std::max(device.fp8.flops_per_second, bf16);
    case Precision::kFp32:
      return bf16 / 2;
  }
  return bf16;
}

// Returns the share of the device that this number of tiles fills.
double FilledShare(double tiles) { return -std::expm1(-tiles / kTilesToFill); }

}  // namespace

double GemmShapeFactor(const GemmOp& op) {
  const double tiles = op.groups * (op.m * op.n) / (kTile * kTile);
  // A side shorter than a tile wastes the rest of the tile.
  const double edge = std::min(op.m / kTile, 1.0) * std::min(op.n / kTile, 1.0);
  const double filled = FilledShare(tiles / std::max(edge, 1e-9));
  return std::max(edge * filled * op.k / (op.k + kInnerRamp), 1e-9);
}

bool HasLatentHeads(const AttentionOp& op) {
  return op.head_dim > 128 && op.value_dim > 0 && op.value_dim <= 128;
}

double AttentionShapeFactor(const AttentionOp& op, const DeviceSpec& device) {
  const double ramp = op.causal ? kCausalRamp : kFullRamp;
  double length = std::max(op.mean_length, 1.0);
  // A query of a causal window sees as many keys as one does in the mean of a
  // sequence twice as long.
  if (op.causal && op.window > 0) {
    length = std::min(length, 2 * static_cast<double>(op.window));
  }
  return HeadFactor(op, device) * length / (length + ramp) *
         (op.backward ? kBackwardFactor : 1);
}

RooflineCost::RooflineCost(const ClusterSpec& cluster,
                           const ParallelLayout& parallel)
    : cluster_(cluster), parallel_(parallel) {}

Duration RooflineCost::Roofline(double flops, double rate, double bytes) const {
  if (flops <= 0 && bytes <= 0) return kZero;
  const DeviceSpec& device = cluster_.device;
  const double compute = flops > 0 ? flops / rate : 0;
  const double memory = bytes / (device.memory_bandwidth.bytes_per_second *
                                 device.memory_efficiency);
  const double seconds = std::max(compute, memory);
  return std::max(Duration(static_cast<int64_t>(std::ceil(seconds * 1e9))),
                  device.kernel_overhead);
}

Duration RooflineCost::CollectiveTime(const CollectiveOp& op) const {
  const bool inside = cluster_.JoinsGroup(GroupSpan(parallel_, op));
  const bool over_replicas =
      op.group == GroupKind::kData || op.group == GroupKind::kExpertData;
  LinkSpec link = inside ? cluster_.intra_node : cluster_.inter_node;
  // All GPUs of a node communicate at once.
  if (!inside) link.bandwidth.bytes_per_second /= cluster_.gpus_per_nic();
  switch (op.kind) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      if (!inside && (over_replicas || op.group == GroupKind::kTensor)) {
        link = RingLinkBetweenNodes(cluster_, parallel_, op);
      }
      return RingCollectiveTime(op.bytes, op.size, link);
    case Collective::kAllToAll:
      if (inside && op.choices == 0) {
        return AllToAllTime(op.bytes, op.size, link);
      } else {
        const SentBytes sent = SentByMember(
            op, inside ? op.size : GroupInNode(cluster_, parallel_, op));
        return AllToAllTime(sent.network, sent.node, op.size, link,
                            cluster_.intra_node);
      }
    case Collective::kRing:
      return RingPassTime(op.bytes, op.size, link);
  }
  return kZero;
}

Duration RooflineCost::Cost(const Op& op) const {
  const DeviceSpec& device = cluster_.device;
  const double peak = device.bf16.flops_per_second;
  return std::visit(
      Overloaded{
          [&](const GemmOp& gemm) {
            const double element = OperandBytes(gemm.precision);
            const double bytes =
                gemm.groups *
                (element * gemm.m * gemm.k + element * gemm.k * gemm.n +
                 gemm.result_bytes * gemm.m * gemm.n);
            if (gemm.flops() <= 0) return kZero;
            return Roofline(gemm.flops(),
                            PeakRate(device, gemm.precision) *
                                device.gemm_efficiency * GemmShapeFactor(gemm),
                            bytes);
          },
          [&](const AttentionOp& attention) {
            return Roofline(attention.flops,
                            peak * device.attention_efficiency *
                                AttentionShapeFactor(attention, device),
                            attention.bytes);
          },
          [&](const MemoryOp& memory) { return Roofline(0, 0, memory.bytes); },
          [&](const FixedOp& fixed) {
            double rate = peak * device.gemm_efficiency;
            if (fixed.flops_per_cycle > 0) {
              rate = std::min(rate,
                              fixed.flops_per_cycle * CyclesPerSecond(device));
            }
            if (fixed.tiles > 0) {
              rate *= std::max(FilledShare(fixed.tiles), 1e-9);
            }
            return Roofline(fixed.flops, rate, fixed.bytes);
          },
          [&](const CollectiveOp& collective) {
            return CollectiveTime(collective);
          },
      },
      op);
}

absl::string_view Name(CostSource source) {
  switch (source) {
    case CostSource::kMeasured:
      return "measured";
    case CostSource::kInterpolated:
      return "interpolated";
    case CostSource::kRoofline:
      return "roofline";
  }
  return "";
}

void AddWait(Duration compute, Duration communication, const OpCostModel& costs,
             StepsCost* total) {
  const Duration room = costs.RoomDuring(communication);
  if (room > compute) {
    const Duration gap = room - compute;
    total->gap += gap;
    total->wait +=
        Seconds(ToSeconds(communication) * ToSeconds(gap) / ToSeconds(room));
  } else if (room == kZero) {
    total->wait += std::max(kZero, communication - compute);
  }
}

StepsCost CostOf(const std::vector<OpStep>& steps, const OpCostModel& costs) {
  StepsCost total;
  for (const OpStep& step : steps) {
    Duration compute = kZero;
    Duration communication = kZero;
    for (const Op& op : step.compute) compute += costs.Cost(op);
    for (const Op& op : step.communication) communication += costs.Cost(op);
    total.time += costs.Overlap(compute, communication);
    AddWait(compute, communication, costs, &total);
  }
  return total;
}

}  // namespace pipeloom::emulator
