// A factor over up to four coordinates, smoothed from scattered points.
//
//   log factor(x) = sum_i w_i f_i / (sum_i w_i + prior),
//   w_i = exp(-sum_d |x_d - p_id| / length_d)
//
// at the knots, and multilinear between them; outside the knots' box the factor
// is that of the nearest point of the box. Far from all points it tends to 1.
// The kernel is a product of one per coordinate, so that making the grid costs
// knots * sum of the axes' lengths. Knots are the points' own coordinates, or
// evenly spaced if there are too many.
#ifndef PIPELOOM_EMULATOR_COST_FACTOR_GRID_H_
#define PIPELOOM_EMULATOR_COST_FACTOR_GRID_H_

#include <array>
#include <cstddef>
#include <vector>

namespace pipeloom::emulator {

// The factor as a grid of knots.
class FactorGrid {
 public:
  static constexpr size_t kAxes = 4;
  using Position = std::array<double, kAxes>;  // Unused axes: 0.
  struct Point {
    Position at{};
    double log_factor = 0;
  };
  struct Options {
    Position lengths{1, 1, 1, 1};
    double prior = 0.05;
    std::array<size_t, kAxes> most_knots{80, 80, 80, 80};
  };

  // Makes a grid that is 1 everywhere.
  FactorGrid() = default;
  // REQUIRES: lengths and most_knots > 0.
  FactorGrid(const std::vector<Point>& points, const Options& options);

  bool empty() const { return log_factor_.empty(); }
  // Returns the logarithm of the factor; 0 if empty. Below 100 ns.
  double LogFactor(const Position& at) const;

 private:
  void SetKnots(const std::vector<Point>& points, size_t axis, size_t most);
  size_t Nearest(size_t axis, double at) const;
  // Multiplies by the kernel along one axis.
  void Smooth(size_t axis, double length, std::vector<double>* values) const;

  std::array<std::vector<double>, kAxes> knots_{};
  std::array<size_t, kAxes> stride_{};
  std::vector<double> log_factor_{};  // Indexed by knot, last axis fastest.
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_FACTOR_GRID_H_
