#include "emulator/cost/straggler.h"

#include <cmath>

namespace pipeloom::emulator {
namespace {

// Returns the value below which a standard normal value lies with probability
// `p`, by bisection. REQUIRES: 0 < p < 1.
double NormalQuantile(double p) {
  double low = -10;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const double below = std::erfc(-middle / std::sqrt(2.0)) / 2;
    (below < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double ExpectedMaximum(int64_t n) {
  if (n <= 1) return 0;
  // Blom's approximation of the largest order statistic.
  return NormalQuantile((static_cast<double>(n) - 0.375) /
                        (static_cast<double>(n) + 0.25));
}

double SlowestOf(double deviation, int64_t gpus) {
  return deviation <= 0 ? 1 : 1 + deviation * ExpectedMaximum(gpus);
}

}  // namespace pipeloom::emulator
