// The time of a forward and a backward of two microbatches that run together on
// two streams of one GPU: while the compute stream waits for collectives of one
// pass, it runs the other.
//
//     F alone:  ccccc....ccccc....          c: compute, .: waits
//     B alone:  ccccccccc.....ccccccccc.....
//     together: cccccccccccccccccccccccccccccc..
//
// In the gaps of each pass fits as much compute of the other as
// OpCostModel::RoomDuring says, so compute that overlaps with communication is
// slowed down. As the operators of a pass depend on each other, not all of it
// is used: kPairShare of it is.
#ifndef PIPELOOM_EMULATOR_STAGE_PASS_PAIR_H_
#define PIPELOOM_EMULATOR_STAGE_PASS_PAIR_H_

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace pipeloom::emulator {

// Share of the overlap of two ideal streams that a pair of passes reaches, as
// in the one measured pair that is published (DeepSeek's DualPipe, 4 layers of
// experts on H800; docs/calibration.md#contention).
inline constexpr double kPairShare = 0.95;

// A pass that may run together with another.
struct PairablePass {
  Duration time{};     // Alone.
  Duration gap{};      // StageCost::forward_gap, ...
  Duration compute{};  // StageCost::forward_compute, ...
};

// Returns how much shorter two passes are together than one after the other:
// at least 0, and at most the time of the shorter one.
inline Duration HiddenTogether(const PairablePass& a, const PairablePass& b) {
  const Duration ideal =
      std::min({std::min(a.gap, b.compute) + std::min(b.gap, a.compute), a.time,
                b.time});
  return Nanoseconds(static_cast<int64_t>(
      std::floor(kPairShare * static_cast<double>(ideal.count()))));
}

// Returns the time of both together.
inline Duration TimeTogether(const PairablePass& a, const PairablePass& b) {
  return a.time + b.time - HiddenTogether(a, b);
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_PASS_PAIR_H_
