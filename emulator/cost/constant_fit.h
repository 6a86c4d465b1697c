// Fit of a few positive constants to measurements: coordinate search in their
// logarithms, each with a step that halves when neither direction helps.
#ifndef PIPELOOM_EMULATOR_COST_CONSTANT_FIT_H_
#define PIPELOOM_EMULATOR_COST_CONSTANT_FIT_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"

namespace pipeloom::emulator {

// Returns constants of lower `loss`, found from `constants` on in `rounds` over
// all of them; deterministic. `most` has the largest value of each. At most two
// calls of `loss` per constant and round.
inline std::vector<double> FitConstants(
    std::vector<double> constants, const std::vector<double>& most, int rounds,
    absl::FunctionRef<double(const std::vector<double>&)> loss) {
  std::vector<double> steps(constants.size(), 0.3);
  double least = loss(constants);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < constants.size(); ++i) {
      bool better = false;
      for (const double sign : {1.0, -1.0}) {
        std::vector<double> tried = constants;
        tried[i] = std::fmin(tried[i] * std::exp(sign * steps[i]), most[i]);
        const double value = loss(tried);
        if (value >= least) continue;
        least = value;
        constants = tried;
        better = true;
        break;
      }
      if (!better) steps[i] /= 2;
    }
  }
  return constants;
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_CONSTANT_FIT_H_
