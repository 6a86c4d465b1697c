#include "emulator/calibration/warmth_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace pipeloom::emulator {
namespace {

constexpr double kColdFactor = 1.5;
constexpr double kDriftFactor = 1.25;
constexpr size_t kLeastRows = 8;
constexpr size_t kSample = 240;  // Rows that are compared if there are many.
constexpr size_t kNeighbours = 5;
constexpr size_t kMaxSizes = 4;

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Row {
  std::array<double, kMaxSizes> sizes{};  // Logarithms.
  double slowness = 0;  // Logarithm of time over the model's time.
};

class Rows {
 public:
  Rows(const std::vector<const OpMeasurement*>& rows,
       const DeviceLimits& limits) {
    double floor = std::numeric_limits<double>::infinity();
    for (const OpMeasurement* row : rows) {
      floor = std::min(floor, row->time_us);
    }
    for (const OpMeasurement* from : rows) {
      Row row;
      const auto& members = SizesOf(from->query.op);
      for (size_t i = 0; i < members.size() && i < kMaxSizes; ++i) {
        const int64_t size = from->query.*members[i];
        row.sizes[i] =
            std::log(static_cast<double>(std::max<int64_t>(size, 1)));
      }
      row.slowness =
          std::log(from->time_us / (floor + RooflineUs(from->query, limits)));
      rows_.push_back(row);
    }
  }

  // Returns the logarithm of how much slower row `i` is than the rows nearest
  // in size among those from `begin` on; nullopt if none is near.
  std::optional<double> Slower(size_t i, size_t begin) const {
    std::array<std::pair<double, double>, kNeighbours> nearest;
    size_t count = 0;
    for (size_t j = begin; j < rows_.size(); ++j) {
      if (j == i) continue;
      double distance = 0;
      for (size_t d = 0; d < kMaxSizes; ++d) {
        distance += std::abs(rows_[i].sizes[d] - rows_[j].sizes[d]);
      }
      if (count == kNeighbours && distance >= nearest[count - 1].first) {
        continue;
      }
      size_t at = count < kNeighbours ? count++ : count - 1;
      while (at > 0 && nearest[at - 1].first > distance) {
        nearest[at] = nearest[at - 1];
        --at;
      }
      nearest[at] = {distance, rows_[j].slowness};
    }
    if (count == 0) return std::nullopt;
    std::vector<double> values;
    for (size_t j = 0; j < count; ++j) values.push_back(nearest[j].second);
    return rows_[i].slowness - Median(std::move(values));
  }

  size_t size() const { return rows_.size(); }

 private:
  std::vector<Row> rows_{};
};

}  // namespace

bool Warmth::cold() const { return first_rows > kColdFactor; }
bool Warmth::drifts() const {
  return drift > kDriftFactor || drift < 1 / kDriftFactor;
}

Warmth MeasureWarmth(const std::vector<const OpMeasurement*>& from,
                     const DeviceLimits& limits) {
  Warmth warmth;
  if (from.size() < kLeastRows) return warmth;
  const Rows rows(from, limits);
  const size_t first = std::clamp<size_t>(rows.size() / 50, 2, 16);
  std::vector<double> slower;
  for (size_t i = 0; i < first; ++i) {
    if (const auto value = rows.Slower(i, first)) slower.push_back(*value);
  }
  if (!slower.empty()) {
    warmth.first_count = static_cast<int>(first);
    // The least cold of the first rows: one odd shape is not a cold start.
    warmth.first_rows =
        std::exp(*std::min_element(slower.begin(), slower.end()));
  }
  if (rows.size() < 3 * kLeastRows) return warmth;
  std::vector<double> early;
  std::vector<double> late;
  const size_t step = std::max<size_t>(rows.size() / kSample, 1);
  for (size_t i = 0; i < rows.size(); i += step) {
    const bool is_early = i < rows.size() / 3;
    if (!is_early && i < rows.size() - rows.size() / 3) continue;
    if (const auto value = rows.Slower(i, 0)) {
      (is_early ? early : late).push_back(*value);
    }
  }
  if (!early.empty() && !late.empty()) {
    warmth.drift = std::exp(Median(std::move(early)) - Median(std::move(late)));
  }
  return warmth;
}

}  // namespace pipeloom::emulator
