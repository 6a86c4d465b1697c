// The backward of fused attention, from measured calls.
//
// A multiprocessor takes one head's block of 128 keys at a time and goes over
// the queries that see it, with five products per pair, three of the queries'
// width d and two of the values' width v:
//
//   block   = 2 * 128 * (3 d + 2 v) * (queries + fill) FLOPs
//   compute = (max(blocks / multiprocessors - 1, 0) mean + tail longest +
//              (1 - tail) mean) / (peak / multiprocessors * rate * share(d))
//   memory  = (inputs, output and its gradient, three gradients, that of the
//             queries in fp32) / (0.8 bandwidth)
//   model   = (compute^4 + memory^4)^(1/4) + overhead
//
// mean and longest are as in attention_cost.h. A kernel pads d and v: those of
// 65 to 128 count as 128. rate, fill, tail and overhead are
// fitted to the points of both masks; share(d) of the kernels for narrow and
// wide heads is not fitted, as public collections contradict each other by a
// quarter there (docs/emulator_model.md). The ratio of measurements to the
// model is a factor over (s, d, b h) that only nearby points change,
// factor_grid.h.
#ifndef PIPELOOM_EMULATOR_COST_ATTENTION_BACKWARD_H_
#define PIPELOOM_EMULATOR_COST_ATTENTION_BACKWARD_H_

#include <array>
#include <cstddef>
#include <vector>

#include "emulator/cost/attention_shape.h"
#include "emulator/cost/factor_grid.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

inline constexpr size_t kBackwardConstants = 4;
using BackwardConstants = std::array<double, kBackwardConstants>;

// Returns the seconds of a backward call, without any factor.
double BackwardModelSeconds(const BackwardConstants& constants,
                            const DeviceRates& rates,
                            const AttentionShape& shape);

// Times of the backward of attention. Immutable and thread-safe.
class AttentionBackward {
 public:
  // Makes an empty model, for profiles without a measured backward.
  AttentionBackward() = default;
  // Fits the model to 16-bit backward tables, measured on a device of `rates`.
  // Takes about 30 us per point.
  AttentionBackward(const std::vector<const AttentionTable*>& tables,
                    const DeviceRates& rates);

  bool empty() const { return empty_; }
  // Returns the seconds of a call on a device of `rates`. About 0.2 us.
  // REQUIRES: !empty().
  double Seconds(const AttentionShape& shape, const DeviceRates& rates) const;

 private:
  bool empty_ = true;
  BackwardConstants constants_{};
  std::array<FactorGrid, 2> factors_{};  // Indexed by mask: causal, full.
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_ATTENTION_BACKWARD_H_
