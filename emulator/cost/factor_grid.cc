#include "emulator/cost/factor_grid.h"

#include <algorithm>
#include <cmath>

namespace pipeloom::emulator {

void FactorGrid::SetKnots(const std::vector<Point>& points, size_t axis,
                          size_t most) {
  std::vector<double>& knots = knots_[axis];
  for (const Point& point : points) knots.push_back(point.at[axis]);
  std::sort(knots.begin(), knots.end());
  knots.erase(std::unique(knots.begin(), knots.end()), knots.end());
  if (knots.size() <= most) return;
  const double first = knots.front();
  const double last = knots.back();
  knots.resize(most);
  const double steps = std::max<double>(static_cast<double>(most) - 1, 1);
  for (size_t i = 0; i < most; ++i) {
    knots[i] = first + (last - first) * static_cast<double>(i) / steps;
  }
}

size_t FactorGrid::Nearest(size_t axis, double at) const {
  const std::vector<double>& knots = knots_[axis];
  const auto above = std::lower_bound(knots.begin(), knots.end(), at);
  if (above == knots.begin()) return 0;
  const auto i = static_cast<size_t>(above - knots.begin());
  if (above == knots.end()) return i - 1;
  return at - knots[i - 1] < knots[i] - at ? i - 1 : i;
}

void FactorGrid::Smooth(size_t axis, double length,
                        std::vector<double>* values) const {
  const std::vector<double>& knots = knots_[axis];
  const size_t count = knots.size();
  if (count == 1) return;
  std::vector<double> weights(count * count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      weights[i * count + j] =
          std::exp(-std::abs(knots[i] - knots[j]) / length);
    }
  }
  const size_t stride = stride_[axis];
  std::vector<double> line(count);
  for (size_t block = 0; block < values->size(); block += stride * count) {
    for (size_t start = block; start < block + stride; ++start) {
      bool any = false;
      for (size_t i = 0; i < count; ++i) {
        line[i] = (*values)[start + i * stride];
        any = any || line[i] != 0;
      }
      if (!any) continue;
      for (size_t i = 0; i < count; ++i) {
        double sum = 0;
        for (size_t j = 0; j < count; ++j) {
          sum += weights[i * count + j] * line[j];
        }
        (*values)[start + i * stride] = sum;
      }
    }
  }
}

FactorGrid::FactorGrid(const std::vector<Point>& points,
                       const Options& options) {
  if (points.empty()) return;
  size_t cells = 1;
  for (size_t axis = kAxes; axis-- > 0;) {
    SetKnots(points, axis, options.most_knots[axis]);
    stride_[axis] = cells;
    cells *= knots_[axis].size();
  }
  std::vector<double> weight(cells, 0.0);
  log_factor_.assign(cells, 0.0);
  for (const Point& point : points) {
    size_t cell = 0;
    for (size_t axis = 0; axis < kAxes; ++axis) {
      cell += Nearest(axis, point.at[axis]) * stride_[axis];
    }
    weight[cell] += 1;
    log_factor_[cell] += point.log_factor;
  }
  for (size_t axis = 0; axis < kAxes; ++axis) {
    Smooth(axis, options.lengths[axis], &weight);
    Smooth(axis, options.lengths[axis], &log_factor_);
  }
  for (size_t i = 0; i < cells; ++i) {
    log_factor_[i] /= weight[i] + options.prior;
  }
}

double FactorGrid::LogFactor(const Position& at) const {
  if (empty()) return 0;
  // The knot below, and how far the position is on the way to the knot above.
  std::array<size_t, kAxes> step{};
  Position share{};
  size_t cell = 0;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const std::vector<double>& knots = knots_[axis];
    if (knots.size() == 1 || at[axis] <= knots.front()) continue;
    size_t below = knots.size() - 1;
    if (at[axis] < knots.back()) {
      const auto above = std::upper_bound(knots.begin(), knots.end(), at[axis]);
      below = static_cast<size_t>(above - knots.begin()) - 1;
      share[axis] = (at[axis] - knots[below]) / (*above - knots[below]);
      if (share[axis] > 0) step[axis] = stride_[axis];
    }
    cell += below * stride_[axis];
  }
  double sum = 0;
  for (size_t corner = 0; corner < (size_t{1} << kAxes); ++corner) {
    size_t index = cell;
    double weight = 1;
    for (size_t axis = 0; axis < kAxes; ++axis) {
      const bool above = ((corner >> axis) & 1) != 0;
      weight *= above ? share[axis] : 1 - share[axis];
      if (above) index += step[axis];
    }
    if (weight > 0) sum += weight * log_factor_[index];
  }
  return sum;
}

}  // namespace pipeloom::emulator
