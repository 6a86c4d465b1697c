#include "emulator/cost/stream_cost.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"

namespace pipeloom::emulator {
namespace {

constexpr double kFixedSeconds = 2e-6;

double ModelSeconds(double bytes, const DeviceRates& rates) {
  return bytes / rates.bytes_per_second + kFixedSeconds;
}

FactorGrid::Position At(double bytes, double width) {
  return {std::log2(std::max(bytes, 1.0)), std::log2(std::max(width, 1.0)), 0,
          0};
}

Fingerprint KeyOf(OpType op, bool backward, double bytes, double width) {
  return FingerprintBuilder()
      .Add(op)
      .Add(backward)
      .Add(bytes)
      .Add(width)
      .Build();
}

OpQuery QueryOf(const StreamTable& t, size_t i) {
  OpQuery query{.op = t.op, .pass = t.pass, .dtype = t.dtype};
  query.tokens = t.tokens[i];
  query.width = t.width[i];
  query.parameters = t.tokens[i];
  return query;
}

}  // namespace

std::vector<OpType> StreamOpsOf(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kNorm:
      return {OpType::kRmsNorm, OpType::kLayerNorm};
    case MemoryKind::kActivation:
      return {OpType::kGelu, OpType::kSwiglu};
    case MemoryKind::kGatedActivation:
      return {OpType::kSwiglu, OpType::kGelu};
    case MemoryKind::kRotary:
      return {OpType::kRope};
    case MemoryKind::kEmbedding:
      return {OpType::kEmbedding};
    case MemoryKind::kLoss:
      return {OpType::kSoftmax};
    case MemoryKind::kOptimizer:
      return {OpType::kOptimizer};
    case MemoryKind::kOther:
    case MemoryKind::kPermutation:
    case MemoryKind::kModulation:
      return {OpType::kAdd};
  }
  return {};
}

StreamCosts::StreamCosts(const DeviceProfile& profile, const DeviceRates& rates,
                         bool own)
    : rates_(rates),
      exact_(
          rates == profile.rates ||
          (own && rates.bytes_per_second == profile.rates.bytes_per_second)) {
  for (const StreamTable& table : profile.stream) {
    if (BytesPerElement(table.dtype) != 2 && table.op != OpType::kOptimizer) {
      continue;
    }
    const bool backward = table.pass == QueryPass::kBackward;
    std::vector<FactorGrid::Point> points;
    for (size_t i = 0; i < table.size(); ++i) {
      const double bytes = MemoryBytesOf(QueryOf(table, i));
      const double width = Real(table.width[i]);
      points.push_back(
          {At(bytes, width),
           std::log(table.us[i] * 1e-6 / ModelSeconds(bytes, profile.rates))});
      if (exact_)
        points_[KeyOf(table.op, backward, bytes, width)] = table.us[i];
    }
    grids_[static_cast<size_t>(table.op)][backward ? 1 : 0] =
        FactorGrid(points, {.lengths = {0.5, 2, 1, 1},
                            .prior = 0.001,
                            .most_knots = {64, 32, 1, 1}});
  }
}

std::optional<OpSeconds> StreamCosts::Price(const MemoryOp& op) const {
  if (op.bytes <= 0) return std::nullopt;
  const size_t wanted = op.backward ? 1 : 0;
  for (const OpType type : StreamOpsOf(op.kind)) {
    const bool parameters = type == OpType::kOptimizer;
    if (exact_) {
      const auto point = points_.find(
          KeyOf(type, op.backward, op.bytes, parameters ? 1 : op.width));
      if (point != points_.end()) {
        return OpSeconds{point->second * 1e-6, CostSource::kMeasured};
      }
    }
    for (const size_t pass : {wanted, 1 - wanted}) {
      const FactorGrid& grid = grids_[static_cast<size_t>(type)][pass];
      if (grid.empty()) continue;
      return OpSeconds{
          ModelSeconds(op.bytes, rates_) *
              std::exp(grid.LogFactor(At(op.bytes, parameters ? 1 : op.width))),
          CostSource::kInterpolated};
    }
  }
  return std::nullopt;
}

}  // namespace pipeloom::emulator
