#include "emulator/framework/cast_launches.h"

#include <algorithm>

namespace pipeloom::emulator {

EagerLaunches CastLaunches(const LayerSpec& layer, const TrainingSetup& setup) {
  const double us = ToMicroseconds(setup.host_per_kernel);
  if (!setup.fp8_products || us <= 0) return {};
  const bool dense = layer.ffn.experts > 0 ? layer.ffn.shared_experts > 0
                                           : layer.ffn.hidden > 0;
  // Each has two products.
  const double blocks = (HasMixer(layer) ? 1 : 0) + (dense ? 1 : 0);
  const double one = std::min(
      us, ToMicroseconds(SetupOf(Framework::kPyTorch).host_per_kernel));
  const double scaled =
      setup.fp8_recipe == Fp8Recipe::kTensor ? 2 * kScaledCastUs : 0;
  return {.forward = blocks * (one + scaled) / us,
          .backward = blocks * (2 * one + scaled) / us};
}

}  // namespace pipeloom::emulator
