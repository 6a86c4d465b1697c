#include "emulator/cost/attention_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/numeric.h"
#include "emulator/cost/constant_fit.h"

namespace pipeloom::emulator {
namespace {

// Indices of the constants.
enum : size_t {
  kRate = 0,
  kExponentials = 4,
  kOverlap,  // Exponent of the norm of products and exponentials.
  kTail,
  kFill,   // Keys.
  kBlock,  // Microseconds.
  kBytes,  // A cycle and multiprocessor.
  kOverhead,
  kSharpness
};

constexpr double kQueries = 128;  // A block has as many.
constexpr double kMemoryShare = 0.85;
constexpr double kExponentialsACycle = 16;

constexpr AttentionConstants kStart = {0.7, 0.7, 0.6, 0.4, 0.9, 3,
                                       0.7, 60,  0.3, 14,  5,   2};
constexpr AttentionConstants kMax = {1, 1,    1,  1,  1,   12,
                                     1, 4096, 20, 20, 100, 8};
constexpr int kRounds = 24;
constexpr size_t kFitPoints = 1500;

// Logarithm of backward over forward time if nothing is measured: cuDNN on H200
// takes 2.9 to 3.3 times as long (cudnn-frontend, MIT).
constexpr double kLogBackward = 1.10;

size_t RateOf(double head_dim) {
  return head_dim <= 64 ? 0 : head_dim <= 128 ? 1 : head_dim <= 256 ? 2 : 3;
}

FactorGrid::Position At(const AttentionShape& s) {
  return {std::log2(std::max(s.batch * s.heads, 1.0)), std::log2(s.seq),
          std::log2(s.head_dim), std::log2(s.heads / s.kv_heads)};
}

Fingerprint KeyOf(bool backward, const AttentionShape& s) {
  return FingerprintBuilder()
      .Add(backward)
      .Add(s.causal)
      .Add(s.batch)
      .Add(s.seq)
      .Add(s.heads)
      .Add(s.kv_heads)
      .Add(s.head_dim)
      .Add(s.value_dim)
      .Build();
}

size_t KindIndex(bool causal) { return causal ? 0 : 1; }

// Returns (a^exponent + b^exponent)^(1 / exponent). REQUIRES: one is positive.
double Norm(double a, double b, double exponent) {
  const double longer = std::max(a, b);
  return longer * std::pow(1 + std::pow(std::min(a, b) / longer, exponent),
                           1 / exponent);
}

}  // namespace

double AttentionModelSeconds(const AttentionConstants& c,
                             const DeviceRates& rates,
                             const Multiprocessor& processor,
                             const AttentionShape& s) {
  const double processors = Real(rates.multiprocessors);
  const double products =
      2 * kQueries * (PaddedHeadDim(s.head_dim) + PaddedHeadDim(s.value_dim)) /
      (rates.bf16_flops_per_second / processors *
       c[kRate + RateOf(s.head_dim)]);
  const double exponentials =
      kQueries /
      (kExponentialsACycle * processor.cycles_per_second * c[kExponentials]);
  const double a_key = processor.asynchronous()
                           ? Norm(products, exponentials, c[kOverlap])
                           : products + exponentials;
  const double group = s.heads / s.kv_heads;
  const double blocks =
      s.batch * s.kv_heads * std::ceil(s.seq * group / kQueries);
  const double seen =
      s.causal ? (s.seq + std::min(s.seq, kQueries / group)) / 2 : s.seq;
  const double block = c[kBlock] * 1e-6;
  const double mean = a_key * (seen * s.density + c[kFill]) + block;
  const double longest = a_key * (s.seq * s.density + c[kFill]) + block;
  const double compute = std::max(blocks / processors - 1, 0.0) * mean +
                         c[kTail] * longest + (1 - c[kTail]) * mean;
  const double bytes =
      2 * s.batch * s.seq * (s.heads + s.kv_heads) * (s.head_dim + s.value_dim);
  const double memory =
      bytes / (rates.bytes_per_second * kMemoryShare) +
      bytes / (processors * processor.cycles_per_second * c[kBytes]);
  return Norm(compute, memory, c[kSharpness]) + c[kOverhead] * 1e-6;
}

AttentionConstants FitAttention(const AttentionTable& table,
                                const DeviceRates& rates) {
  const Multiprocessor processor = MultiprocessorOf(rates);
  const size_t step = std::max<size_t>(1, table.size() / kFitPoints);
  std::vector<AttentionShape> shapes;
  std::vector<double> logs;
  for (size_t i = 0; i < table.size(); i += step) {
    shapes.push_back(ShapeOf(table, i));
    logs.push_back(std::log(table.us[i] * 1e-6));
  }
  const auto loss = [&](const std::vector<double>& tried) {
    AttentionConstants c;
    std::copy(tried.begin(), tried.end(), c.begin());
    double sum = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      sum += std::abs(
          std::log(AttentionModelSeconds(c, rates, processor, shapes[i])) -
          logs[i]);
    }
    return sum;
  };
  const std::vector<double> fitted =
      FitConstants({kStart.begin(), kStart.end()}, {kMax.begin(), kMax.end()},
                   kRounds, loss);
  AttentionConstants result;
  std::copy(fitted.begin(), fitted.end(), result.begin());
  return result;
}

AttentionCosts::AttentionCosts(const DeviceProfile& profile,
                               const DeviceRates& rates,
                               const Multiprocessor& processor, bool own)
    : rates_(rates),
      processor_(processor),
      exact_(
          rates == profile.rates ||
          (own &&
           rates.bf16_flops_per_second == profile.rates.bf16_flops_per_second &&
           rates.bytes_per_second == profile.rates.bytes_per_second)) {
  for (const AttentionTable& table : profile.attention) {
    if (table.pass == QueryPass::kForward) AddForward(table, profile.rates);
  }
  AddBackward(profile);
}

const AttentionCosts::Kind* AttentionCosts::Find(bool causal,
                                                 double head_dim) const {
  const size_t kernel = KernelOf(head_dim);
  for (const bool measured : {true, false}) {
    for (const size_t i : {KindIndex(causal), 1 - KindIndex(causal)}) {
      if (!kinds_[i].has_value()) continue;
      if (!measured || kinds_[i]->measured[kernel]) return &*kinds_[i];
    }
  }
  return nullptr;
}

void AttentionCosts::AddForward(const AttentionTable& table,
                                const DeviceRates& made_with) {
  // Only the 16-bit types have kernels of their own here.
  if (table.size() == 0 || BytesPerElement(table.dtype) != 2) return;
  Kind& kind =
      kinds_[KindIndex(table.mask == QueryMask::kCausal)].emplace(Kind{});
  if (table.fit.size() == kAttentionConstants) {
    std::copy(table.fit.begin(), table.fit.end(), kind.constants.begin());
  } else {
    kind.constants = FitAttention(table, made_with);
  }
  std::vector<FactorGrid::Point> points;
  for (size_t i = 0; i < table.size(); ++i) {
    const AttentionShape shape = ShapeOf(table, i);
    kind.measured[KernelOf(shape.head_dim)] = true;
    if (exact_ && shape.density == 1) {
      points_[KeyOf(false, shape)] = table.us[i];
    }
    points.push_back(
        {At(shape),
         std::log(table.us[i] * 1e-6 /
                  AttentionModelSeconds(kind.constants, made_with,
                                        MultiprocessorOf(made_with), shape))});
  }
  // Details of one generation's kernels do not carry over to another's.
  const bool same = processor_.IsLike(MultiprocessorOf(made_with));
  kind.forward = FactorGrid(
      points, {.lengths = same ? FactorGrid::Position{0.15, 0.1, 0.1, 0.5}
                               : FactorGrid::Position{0.8, 0.6, 0.4, 2},
               .prior = 0.02,
               .most_knots = {96, 64, 16, 16}});
}

void AttentionCosts::AddBackward(const DeviceProfile& profile) {
  std::vector<const AttentionTable*> tables;
  for (const AttentionTable& table : profile.attention) {
    if (table.pass == QueryPass::kForward ||
        BytesPerElement(table.dtype) != 2) {
      continue;
    }
    tables.push_back(&table);
    for (size_t i = 0; exact_ && i < table.size(); ++i) {
      const AttentionShape shape = ShapeOf(table, i);
      if (shape.density == 1) points_[KeyOf(true, shape)] = table.us[i];
    }
  }
  backward_ = AttentionBackward(tables, profile.rates);
}

std::optional<OpSeconds> AttentionCosts::Price(const AttentionOp& op) const {
  const Kind* kind = Find(op.causal, Real(op.head_dim));
  if (kind == nullptr || op.heads <= 0 || op.tokens <= 0 ||
      op.mean_length <= 0) {
    return std::nullopt;
  }
  AttentionShape shape{
      .batch = op.tokens / op.mean_length,
      .seq = op.mean_length,
      .heads = op.heads,
      .kv_heads = op.kv_heads > 0 ? std::min(op.kv_heads, op.heads) : op.heads,
      .head_dim = Real(op.head_dim),
      .value_dim = Real(op.value_dim > 0 ? op.value_dim : op.head_dim),
      .causal = op.causal};
  const double whole = 2 * shape.batch * shape.pairs() * shape.heads *
                       (shape.head_dim + shape.value_dim) *
                       (op.backward ? 2.5 : 1);
  shape.density = op.flops / whole;
  if (std::abs(shape.density - 1) < 1e-9) shape.density = 1;
  if (exact_ && shape.density == 1) {
    const auto point = points_.find(KeyOf(op.backward, shape));
    if (point != points_.end()) {
      return OpSeconds{point->second * 1e-6, CostSource::kMeasured};
    }
  }
  if (op.backward && !backward_.empty()) {
    return OpSeconds{backward_.Seconds(shape, rates_),
                     CostSource::kInterpolated};
  }
  const double log_factor =
      kind->forward.LogFactor(At(shape)) + (op.backward ? kLogBackward : 0);
  return OpSeconds{
      AttentionModelSeconds(kind->constants, rates_, processor_, shape) *
          std::exp(log_factor),
      CostSource::kInterpolated};
}

}  // namespace pipeloom::emulator
