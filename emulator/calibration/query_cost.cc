#include "emulator/calibration/query_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "emulator/cost/profile_cost.h"

namespace pipeloom::emulator {
namespace {

double AsDouble(int64_t value) { return static_cast<double>(value); }

Precision PrecisionOf(QueryDtype dtype) {
  switch (dtype) {
    case QueryDtype::kFp8:
      return Precision::kFp8;
    case QueryDtype::kFp32:
      return Precision::kFp32;
    default:
      return Precision::kBf16;
  }
}

MemoryKind KindOf(OpType op) {
  switch (op) {
    case OpType::kRmsNorm:
    case OpType::kLayerNorm:
      return MemoryKind::kNorm;
    case OpType::kGelu:
      return MemoryKind::kActivation;
    case OpType::kSwiglu:
      return MemoryKind::kGatedActivation;
    case OpType::kRope:
      return MemoryKind::kRotary;
    case OpType::kEmbedding:
      return MemoryKind::kEmbedding;
    case OpType::kSoftmax:
      return MemoryKind::kLoss;
    case OpType::kOptimizer:
      return MemoryKind::kOptimizer;
    default:
      return MemoryKind::kOther;
  }
}

// A product's result has the type of the layer, which is never fp8.
double ResultBytes(QueryDtype dtype) {
  return dtype == QueryDtype::kFp32 ? 4 : 2;
}

GemmOp Product(const OpQuery& q) {
  GemmOp op;
  op.result_bytes = ResultBytes(q.dtype);
  op.groups = AsDouble(q.op == OpType::kGroupedGemm ? q.groups : 1);
  op.precision = PrecisionOf(q.dtype);
  op.pass = q.pass;
  op.m = AsDouble(q.m);
  op.n = AsDouble(q.n);
  op.k = AsDouble(q.k);
  op.pass = q.pass;
  if (q.pass == QueryPass::kInputGrad) {
    op.n = AsDouble(q.k);
    op.k = AsDouble(q.n);
  } else if (q.pass == QueryPass::kWeightGrad) {
    op.m = AsDouble(q.n);
    op.n = AsDouble(q.k);
    op.k = AsDouble(q.m);
    op.result_bytes = 8;
  }
  return op;
}

AttentionOp Attention(const OpQuery& q) {
  AttentionOp op;
  op.flops = FlopsOf(q);
  op.bytes = MemoryBytesOf(q);
  op.mean_length = AsDouble(q.seq);
  op.head_dim = q.head_dim;
  op.causal = q.mask == QueryMask::kCausal;
  op.backward = q.pass == QueryPass::kBackward;
  op.tokens = AsDouble(q.batch) * AsDouble(q.seq);
  op.heads = AsDouble(q.heads);
  op.kv_heads = AsDouble(q.kv_heads > 0 ? q.kv_heads : q.heads);
  op.window = q.window;
  return op;
}

MemoryOp Streaming(const OpQuery& q) {
  MemoryOp op;
  op.bytes = MemoryBytesOf(q);
  op.kind = KindOf(q.op);
  op.rows = q.op == OpType::kOptimizer ? 1 : AsDouble(q.tokens);
  op.width = AsDouble(q.op == OpType::kOptimizer ? q.parameters : q.width);
  op.backward = q.pass == QueryPass::kBackward;
  return op;
}

// Forward: permute, up and gate, activation, down, permute back. Backward:
// the gradients of inputs and weights of both products.
std::vector<Op> Experts(const OpQuery& q) {
  const double visits = AsDouble(q.tokens) * AsDouble(q.top_k);
  const double element = BytesPerElement(q.dtype);
  const bool backward = q.pass == QueryPass::kBackward;
  MemoryOp permute;
  permute.bytes = 2 * visits * AsDouble(q.width) * element;
  permute.kind = MemoryKind::kPermutation;
  permute.rows = visits;
  permute.width = AsDouble(q.width);
  permute.backward = backward;
  MemoryOp activation;
  activation.bytes = (backward ? 5 : 3) * visits * AsDouble(q.ffn) * element;
  activation.kind = MemoryKind::kGatedActivation;
  activation.rows = visits;
  activation.width = AsDouble(q.ffn);
  activation.backward = backward;
  GemmOp up;
  up.result_bytes = ResultBytes(q.dtype);
  up.precision = PrecisionOf(q.dtype);
  // Fewer visits than experts leave some experts idle.
  up.groups = std::min(AsDouble(q.experts), visits);
  up.m = visits / up.groups;
  up.n = 2 * AsDouble(q.ffn);
  up.k = AsDouble(q.width);
  GemmOp down = up;
  down.n = AsDouble(q.width);
  down.k = AsDouble(q.ffn);
  std::vector<Op> ops = {permute};
  if (!backward) {
    ops.insert(ops.end(), {up, activation, down, permute});
    return ops;
  }
  for (const GemmOp& forward : {down, up}) {
    GemmOp input = forward;
    std::swap(input.n, input.k);
    input.pass = QueryPass::kInputGrad;
    GemmOp weight = forward;
    weight.pass = QueryPass::kWeightGrad;
    weight.m = forward.n;
    weight.n = forward.k;
    weight.k = forward.m;
    ops.insert(ops.end(), {input, weight});
  }
  ops.insert(ops.end(), {activation, permute});
  return ops;
}

// Returns the profile's collectives, with the cluster's links if it has none.
CollectiveProfile CollectivesOf(const ClusterSpec& cluster,
                                const DeviceProfile* profile) {
  CollectiveProfile collectives;
  if (profile != nullptr) collectives = profile->collectives;
  if (collectives.node_bytes_per_second <= 0) {
    collectives.node_bytes_per_second =
        cluster.intra_node.bandwidth.bytes_per_second;
  }
  if (collectives.nic_bytes_per_second <= 0) {
    collectives.nic_bytes_per_second =
        cluster.inter_node.bandwidth.bytes_per_second;
    collectives.gpus_per_node = cluster.gpus_per_node;
  }
  return collectives;
}

}  // namespace

std::vector<Op> OpsOf(const OpQuery& query) {
  switch (query.op) {
    case OpType::kGemm:
    case OpType::kGroupedGemm:
      return {Product(query)};
    case OpType::kAttention:
      return {Attention(query)};
    case OpType::kMoe:
      return Experts(query);
    case OpType::kOptimizer:
      return {Streaming(query)};
    default:
      break;
  }
  if (IsStreaming(query.op)) return {Streaming(query)};
  return {};
}

QueryCost::QueryCost(const ClusterSpec& cluster, const DeviceProfile* profile)
    : ops_(MakeOpCosts(cluster, ParallelLayout(), profile)),
      collectives_(CollectivesOf(cluster, profile)),
      launch_us_(profile != nullptr && profile->launch_us > 0
                     ? profile->launch_us
                     : ToMicroseconds(cluster.device.kernel_overhead)) {}

absl::StatusOr<QueryPrice> QueryCost::CollectivePrice(
    const OpQuery& query) const {
  const CollectiveTime time =
      collectives_.Time({query.op, query.span, AsDouble(query.bytes),
                         query.ranks, query.ranks_per_node});
  if (!std::isfinite(time.seconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no link's bandwidth is known for ", ToString(query)));
  }
  QueryPrice price;
  price.us = time.seconds * 1e6;
  switch (time.source) {
    case CollectiveSource::kMeasured:
      price.source = CostSource::kMeasured;
      break;
    case CollectiveSource::kInterpolated:
      price.source = CostSource::kInterpolated;
      break;
    case CollectiveSource::kModel:
      break;
  }
  return price;
}

absl::StatusOr<QueryPrice> QueryCost::Price(const OpQuery& query) const {
  PIPELOOM_RETURN_IF_ERROR(ValidateOpQuery(query));
  if (IsCollective(query.op)) return CollectivePrice(query);
  QueryPrice price;
  if (query.op == OpType::kSmallLayer) {
    price.us = launch_us_ * AsDouble(query.kernels);
    return price;
  }
  price.source = CostSource::kMeasured;
  for (const Op& op : OpsOf(query)) {
    const OpPrice part = ops_->Price(op);
    price.us += ToMicroseconds(part.time);
    price.source = std::max(price.source, part.source);
  }
  return price;
}

ClusterSpec ClusterOfLimits(const DeviceLimits& limits) {
  ClusterSpec cluster;
  cluster.name = limits.name;
  DeviceSpec& device = cluster.device;
  device.name = limits.name;
  device.bf16 = {limits.bf16_flops_per_second};
  device.fp8 = {limits.fp8_flops_per_second};
  device.memory = Bytes(int64_t{80} << 30);
  device.memory_bandwidth = {limits.memory_bytes_per_second};
  device.gemm_efficiency = 0.75;
  device.attention_efficiency = 0.55;
  device.memory_efficiency = 0.8;
  device.kernel_overhead = Microseconds(3);
  device.host_bandwidth = {25e9};
  cluster.num_nodes = 1;
  cluster.gpus_per_node = 8;
  const double link = limits.link_bytes_per_second > 0
                          ? 0.7 * limits.link_bytes_per_second
                          : 25e9;
  cluster.intra_node = {Microseconds(3), {link}};
  cluster.inter_node = {Microseconds(10), {25e9}};
  return cluster;
}

absl::StatusOr<Predictor> PredictorOf(const DeviceProfile& profile,
                                      const DeviceLimits& limits) {
  DeviceProfile sorted = profile;
  Canonicalize(&sorted);
  PIPELOOM_RETURN_IF_ERROR(ValidateDeviceProfile(sorted));
  const auto costs =
      std::make_shared<const QueryCost>(ClusterOfLimits(limits), &sorted);
  return Predictor([costs](const OpQuery& query) {
    const absl::StatusOr<QueryPrice> price = costs->Price(query);
    return price.ok() ? price->us : 0.0;
  });
}

}  // namespace pipeloom::emulator
