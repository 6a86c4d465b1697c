#include "emulator/cost/attention_backward.h"

#include <algorithm>
#include <cmath>

#include "emulator/cost/constant_fit.h"

namespace pipeloom::emulator {
namespace {

// Indices of the constants.
enum : size_t { kRate = 0, kFill, kTail, kOverhead };

// Start of the fit, how strongly it is held there (weights on the squares of
// logarithms), and largest values. kFill is in keys, kOverhead in microseconds.
constexpr BackwardConstants kStart = {0.5, 150, 0.5, 20};
constexpr BackwardConstants kHeld = {0, 0.05, 0.03, 0.05};
constexpr BackwardConstants kMax = {1, 4096, 1, 200};
constexpr int kRounds = 40;
constexpr size_t kFitPoints = 300;

constexpr double kBlock = 128;
constexpr double kMemoryShare = 0.8;
constexpr double kSharpness = 4;

// Shares of the rate of the kernel for heads of 128: up to 64 as in
// roofline_cost.cc, beyond 128 as heads of 192 on an A100 (SimuMax,
// Apache-2.0). On B200 two collections have 0.75 and 0.9.
constexpr double kNarrowShare = 0.77;
constexpr double kWideShare = 0.84;

// cuDNN's backward of heads of 72 and of 80 takes as long as that of 128
// (workloads/measured/h200-sxm/attention.csv).
double BackwardHeadDim(double head_dim) {
  constexpr double kNarrow = 64;
  constexpr double kUsual = 128;
  return kNarrow < head_dim && head_dim <= kUsual ? kUsual
                                                  : PaddedHeadDim(head_dim);
}

double ShareOf(double head_dim) {
  return head_dim <= 64 ? kNarrowShare : head_dim <= 128 ? 1 : kWideShare;
}

FactorGrid::Position At(const AttentionShape& s) {
  return {std::log2(s.seq), std::log2(s.head_dim),
          std::log2(std::max(s.batch * s.heads, 1.0)), 0};
}

size_t KindIndex(bool causal) { return causal ? 0 : 1; }

}  // namespace

double BackwardModelSeconds(const BackwardConstants& c,
                            const DeviceRates& rates, const AttentionShape& s) {
  const double processors = Real(rates.multiprocessors);
  const double rate =
      rates.bf16_flops_per_second / processors * c[kRate] * ShareOf(s.head_dim);
  const double rows = std::ceil(s.seq / kBlock);
  const double blocks = s.batch * s.heads * rows;
  const double a_query =
      2 * kBlock *
      (3 * BackwardHeadDim(s.head_dim) + 2 * BackwardHeadDim(s.value_dim));
  const double seen = s.causal ? (rows + 1) * kBlock / 2 : s.seq;
  const double mean = a_query * (seen * s.density + c[kFill]);
  const double longest = a_query * (s.seq * s.density + c[kFill]);
  const double compute = (std::max(blocks / processors - 1, 0.0) * mean +
                          c[kTail] * longest + (1 - c[kTail]) * mean) /
                         rate;
  const double elements = s.batch * s.seq * (s.head_dim + s.value_dim) *
                          (3 * s.heads + 2 * s.kv_heads);
  const double memory = 2 * elements / (rates.bytes_per_second * kMemoryShare);
  const double longer = std::max(compute, memory);
  const double ratio = std::min(compute, memory) / longer;
  return longer * std::pow(1 + std::pow(ratio, kSharpness), 1 / kSharpness) +
         c[kOverhead] * 1e-6;
}

AttentionBackward::AttentionBackward(
    const std::vector<const AttentionTable*>& tables,
    const DeviceRates& rates) {
  struct Point {
    AttentionShape shape{};
    double log_seconds = 0;
  };
  std::vector<Point> points;
  for (const AttentionTable* table : tables) {
    for (size_t i = 0; i < table->size(); ++i) {
      points.push_back({ShapeOf(*table, i), std::log(table->us[i] * 1e-6)});
    }
  }
  if (points.empty()) return;
  empty_ = false;
  const size_t step = std::max<size_t>(1, points.size() / kFitPoints);
  const auto loss = [&](const std::vector<double>& tried) {
    BackwardConstants c;
    std::copy(tried.begin(), tried.end(), c.begin());
    double sum = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      const double away = std::log(c[i] / kStart[i]);
      sum += kHeld[i] * away * away;
    }
    for (size_t i = 0; i < points.size(); i += step) {
      sum +=
          std::abs(std::log(BackwardModelSeconds(c, rates, points[i].shape)) -
                   points[i].log_seconds);
    }
    return sum;
  };
  const std::vector<double> fitted =
      FitConstants({kStart.begin(), kStart.end()}, {kMax.begin(), kMax.end()},
                   kRounds, loss);
  std::copy(fitted.begin(), fitted.end(), constants_.begin());

  std::array<std::vector<FactorGrid::Point>, 2> over;
  for (const Point& p : points) {
    over[KindIndex(p.shape.causal)].push_back(
        {At(p.shape), p.log_seconds - std::log(BackwardModelSeconds(
                                          constants_, rates, p.shape))});
  }
  for (size_t kind = 0; kind < over.size(); ++kind) {
    if (over[kind].empty()) continue;
    factors_[kind] = FactorGrid(over[kind], {.lengths = {0.5, 0.1, 0.5, 1},
                                             .prior = 0.3,
                                             .most_knots = {40, 16, 40, 1}});
  }
}

double AttentionBackward::Seconds(const AttentionShape& shape,
                                  const DeviceRates& rates) const {
  return BackwardModelSeconds(constants_, rates, shape) *
         std::exp(factors_[KindIndex(shape.causal)].LogFactor(At(shape)));
}

}  // namespace pipeloom::emulator
