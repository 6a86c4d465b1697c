// A GPU's multiprocessor by its data sheet.
#ifndef PIPELOOM_EMULATOR_COST_MULTIPROCESSOR_H_
#define PIPELOOM_EMULATOR_COST_MULTIPROCESSOR_H_

#include "base/numeric.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

// Clock and products of a multiprocessor, by the data sheet.
struct Multiprocessor {
  double cycles_per_second = 0;
  double operations_per_cycle = 0;  // Dense, 16 bits.

  // Whether its generation's kernels are those of `other`.
  bool IsLike(const Multiprocessor& other) const {
    return operations_per_cycle == other.operations_per_cycle;
  }
  // Whether products run asynchronously, so that softmax overlaps with them:
  // from Hopper on.
  bool asynchronous() const { return operations_per_cycle > 3000; }
};

// Returns the multiprocessor that has the peak of the data sheet: operations a
// cycle are a power of two, and clocks are between 1.3 and 2.6 GHz.
inline Multiprocessor MultiprocessorOf(const DeviceRates& rates) {
  constexpr double kMaxCycles = 2.6e9;
  Multiprocessor result{
      rates.bf16_flops_per_second / Real(rates.multiprocessors), 1};
  while (result.cycles_per_second > kMaxCycles) {
    result.cycles_per_second /= 2;
    result.operations_per_cycle *= 2;
  }
  return result;
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_MULTIPROCESSOR_H_
