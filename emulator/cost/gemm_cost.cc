#include "emulator/cost/gemm_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numeric.h"
#include "emulator/cost/constant_fit.h"

namespace pipeloom::emulator {
namespace {

// Indices of the constants.
enum : size_t { kForm = 0, kFill = 5, kMemory, kOverhead, kSplit, kSharpness };

struct Tile {
  double rows;
  double columns;
  size_t form;  // Index of its efficiency.
};
constexpr Tile kTiles[] = {
    {256, 128, 0}, {128, 256, 0}, {128, 128, 1}, {128, 64, 2}, {64, 128, 2},
    {64, 256, 1},  {256, 64, 1},  {64, 64, 3},   {32, 64, 4},  {64, 32, 4}};
constexpr double kSplits[] = {1, 2, 4, 8, 16};
constexpr double kInnerStep = 32;  // Least part of k.

constexpr GemmConstants kStart = {0.85, 0.75, 0.6, 0.45, 0.3,
                                  100,  0.8,  2,   2,    3};
constexpr GemmConstants kMax = {1, 1, 1, 1, 1, 4096, 1, 100, 100, 8};
constexpr int kRounds = 16;
constexpr size_t kFitPoints = 1200;

// Logarithm of the time over that of a forward product of the same sizes,
// without measurements of gradients. Guesses.
constexpr double kLogInputGrad = 0.02;
constexpr double kLogWeightGrad = 0.03;

double PeakOf(const DeviceRates& rates, QueryDtype dtype) {
  return dtype == QueryDtype::kFp8 && rates.fp8_flops_per_second > 0
             ? rates.fp8_flops_per_second
             : rates.bf16_flops_per_second;
}

size_t KindIndex(QueryDtype dtype) { return dtype == QueryDtype::kFp8 ? 1 : 0; }

// Returns the product that the pass computes in row `i`.
GemmShape ShapeOf(const GemmTable& t, size_t i) {
  GemmShape shape{.m = Real(t.m[i]),
                  .n = Real(t.n[i]),
                  .k = Real(t.k[i]),
                  .groups = t.groups.empty() ? 1 : Real(t.groups[i]),
                  .element_bytes = BytesPerElement(t.dtype)};
  if (t.pass == QueryPass::kInputGrad) {
    std::swap(shape.n, shape.k);
  } else if (t.pass == QueryPass::kWeightGrad) {
    shape.m = Real(t.n[i]);
    shape.n = Real(t.k[i]);
    shape.k = Real(t.m[i]);
    shape.result_bytes = 8;
  }
  return shape;
}

FactorGrid::Position At(const GemmShape& shape) {
  return {std::log2(shape.m), std::log2(shape.n), std::log2(shape.k), 0};
}

FactorGrid::Position GroupedAt(const GemmShape& shape) {
  return {std::log2(shape.m), std::log2(shape.groups),
          std::log2(shape.n * shape.k), 0};
}

Fingerprint KeyOf(QueryPass pass, QueryDtype dtype, const GemmShape& s) {
  return FingerprintBuilder()
      .Add(pass)
      .Add(KindIndex(dtype))
      .Add(s.m)
      .Add(s.n)
      .Add(s.k)
      .Add(s.groups)
      .Build();
}

}  // namespace

double GemmModelSeconds(const GemmConstants& c, double peak,
                        const DeviceRates& rates, const GemmShape& shape) {
  const double processors = Real(rates.multiprocessors);
  const double one = peak / processors;
  const double bandwidth = rates.bytes_per_second * c[kMemory];
  const double results = shape.groups * shape.m * shape.n;
  double compute = std::numeric_limits<double>::infinity();
  for (const double split : kSplits) {
    const double inner =
        std::ceil(shape.k / split / kInnerStep) * kInnerStep + c[kFill];
    const double extra =
        split > 1 ? c[kSplit] * 1e-6 + 4 * results * split / bandwidth : 0;
    for (const Tile& tile : kTiles) {
      const double tiles = shape.groups * std::ceil(shape.m / tile.rows) *
                           std::ceil(shape.n / tile.columns);
      const double turns = std::ceil(tiles * split / processors);
      compute = std::min(compute, extra + turns * 2 * tile.rows * tile.columns *
                                              inner / (one * c[tile.form]));
    }
    // More parts cannot help once all processors are busy and k is short.
    if (shape.k <= split * kInnerStep) break;
  }
  const double operands =
      shape.groups * shape.element_bytes * shape.k * (shape.m + shape.n);
  const double memory = (operands + shape.result_bytes * results) / bandwidth;
  const double longer = std::max(compute, memory);
  const double ratio = std::min(compute, memory) / longer;
  return longer *
             std::pow(1 + std::pow(ratio, c[kSharpness]), 1 / c[kSharpness]) +
         c[kOverhead] * 1e-6;
}

GemmConstants FitGemm(const GemmTable& table, const DeviceRates& rates) {
  const double peak = PeakOf(rates, table.dtype);
  const size_t step = std::max<size_t>(1, table.size() / kFitPoints);
  std::vector<GemmShape> shapes;
  std::vector<double> logs;
  for (size_t i = 0; i < table.size(); i += step) {
    shapes.push_back(ShapeOf(table, i));
    logs.push_back(std::log(table.us[i] * 1e-6));
  }
  const auto loss = [&](const std::vector<double>& tried) {
    GemmConstants c;
    std::copy(tried.begin(), tried.end(), c.begin());
    double sum = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      sum += std::abs(std::log(GemmModelSeconds(c, peak, rates, shapes[i])) -
                      logs[i]);
    }
    return sum;
  };
  const std::vector<double> fitted =
      FitConstants({kStart.begin(), kStart.end()}, {kMax.begin(), kMax.end()},
                   kRounds, loss);
  GemmConstants result;
  std::copy(fitted.begin(), fitted.end(), result.begin());
  return result;
}

GemmCosts::GemmCosts(const DeviceProfile& profile, const DeviceRates& rates,
                     bool own)
    : rates_(rates), own_(own) {
  // Forward tables first: gradients are relative to forward products.
  for (const GemmTable& table : profile.gemm) {
    if (table.pass == QueryPass::kForward) AddForward(table, profile.rates);
  }
  for (const GemmTable& table : profile.gemm) {
    if (table.pass != QueryPass::kForward) AddGradient(table, profile.rates);
  }
}

void GemmCosts::AddForward(const GemmTable& table,
                           const DeviceRates& made_with) {
  if (table.size() == 0 || table.dtype == QueryDtype::kFp32) return;
  Kind& kind = kinds_[KindIndex(table.dtype)].emplace(Kind{});
  if (table.fit.size() == kGemmConstants) {
    std::copy(table.fit.begin(), table.fit.end(), kind.constants.begin());
  } else {
    kind.constants = FitGemm(table, made_with);
  }
  kind.peak = PeakOf(rates_, table.dtype);
  const double peak = PeakOf(made_with, table.dtype);
  kind.exact = rates_ == made_with ||
               (own_ && kind.peak == peak &&
                rates_.bytes_per_second == made_with.bytes_per_second);
  std::vector<FactorGrid::Point> points;
  std::vector<size_t> grouped;
  for (size_t i = 0; i < table.size(); ++i) {
    const GemmShape shape = ShapeOf(table, i);
    if (kind.exact) {
      points_[KeyOf(table.pass, table.dtype, shape)] = table.us[i];
    }
    if (shape.groups > 1) {
      grouped.push_back(i);
      continue;
    }
    points.push_back({At(shape), std::log(table.us[i] * 1e-6 /
                                          GemmModelSeconds(kind.constants, peak,
                                                           made_with, shape))});
  }
  kind.forward = FactorGrid(points, {.lengths = {0.1, 0.3, 0.3, 1},
                                     .prior = 0.03,
                                     .most_knots = {96, 64, 64, 1}});
  points.clear();
  for (const size_t i : grouped) {
    const GemmShape shape = ShapeOf(table, i);
    points.push_back(
        {GroupedAt(shape),
         std::log(table.us[i] * 1e-6 /
                  GemmModelSeconds(kind.constants, peak, made_with, shape)) -
             kind.forward.LogFactor(At(shape))});
  }
  kind.grouped = FactorGrid(
      points,
      {.lengths = {1, 1, 1, 1}, .prior = 0.1, .most_knots = {40, 20, 40, 1}});
}

void GemmCosts::AddGradient(const GemmTable& table,
                            const DeviceRates& made_with) {
  if (!kinds_[KindIndex(table.dtype)].has_value() || table.size() == 0) return;
  Kind& kind = *kinds_[KindIndex(table.dtype)];
  const double peak = PeakOf(made_with, table.dtype);
  std::vector<FactorGrid::Point> points;
  for (size_t i = 0; i < table.size(); ++i) {
    const GemmShape shape = ShapeOf(table, i);
    if (kind.exact) {
      points_[KeyOf(table.pass, table.dtype, shape)] = table.us[i];
    }
    double known = kind.forward.LogFactor(At(shape));
    if (shape.groups > 1) known += kind.grouped.LogFactor(GroupedAt(shape));
    points.push_back({At(shape), std::log(table.us[i] * 1e-6 /
                                          GemmModelSeconds(kind.constants, peak,
                                                           made_with, shape)) -
                                     known});
  }
  const auto pass = static_cast<size_t>(table.pass);
  kind.correction[pass] = FactorGrid(
      points,
      {.lengths = {1, 1, 1, 1}, .prior = 0.02, .most_knots = {40, 40, 40, 1}});
  kind.corrected[pass] = true;
}

std::optional<OpSeconds> GemmCosts::Price(const GemmOp& op) const {
  const QueryDtype dtype =
      op.precision == Precision::kFp8 && rates_.fp8_flops_per_second > 0
          ? QueryDtype::kFp8
          : QueryDtype::kBf16;
  if (op.precision == Precision::kFp32) return std::nullopt;
  const std::optional<Kind>& found = kinds_[KindIndex(dtype)];
  if (!found.has_value()) return std::nullopt;
  const Kind& kind = *found;
  const GemmShape shape{.m = op.m,
                        .n = op.n,
                        .k = op.k,
                        .groups = op.groups,
                        .element_bytes = BytesPerElement(dtype),
                        .result_bytes = op.result_bytes};
  if (kind.exact) {
    const auto point = points_.find(KeyOf(op.pass, dtype, shape));
    if (point != points_.end()) {
      // Without fp8 units the product runs in bf16, but was not measured as
      // fp8.
      const bool is_fp8 = op.precision == Precision::kFp8;
      return OpSeconds{point->second * 1e-6, is_fp8 && dtype != QueryDtype::kFp8
                                                 ? CostSource::kInterpolated
                                                 : CostSource::kMeasured};
    }
  }
  double log_factor = kind.forward.LogFactor(At(shape));
  if (shape.groups > 1) log_factor += kind.grouped.LogFactor(GroupedAt(shape));
  if (op.pass != QueryPass::kForward) {
    const auto pass = static_cast<size_t>(op.pass);
    if (kind.corrected[pass]) {
      log_factor += kind.correction[pass].LogFactor(At(shape));
    } else {
      log_factor +=
          op.pass == QueryPass::kInputGrad ? kLogInputGrad : kLogWeightGrad;
    }
  }
  return OpSeconds{GemmModelSeconds(kind.constants, kind.peak, rates_, shape) *
                       std::exp(log_factor),
                   CostSource::kInterpolated};
}

}  // namespace pipeloom::emulator
