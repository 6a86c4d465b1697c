// Options of the emulation of a step.
#ifndef PIPELOOM_EMULATOR_STEP_EMULATE_OPTIONS_H_
#define PIPELOOM_EMULATOR_STEP_EMULATE_OPTIONS_H_

#include <optional>
#include <vector>

#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/shared_links.h"

namespace pipeloom::emulator {

// A straggler: everything that the rank computes and copies, without its
// epilogue, or everything between two ranks in this direction takes `factor`
// times as long. Factors of several stragglers multiply. Each
// transfer of a slow link also occupies it for `added` (>= 0) longer: with
// `ahead` before the transfer, from when its send is reached, also while the
// receiver is not there yet.
struct SlowRank {
  RankId rank{};
  double factor = 1;
  bool operator==(const SlowRank&) const = default;
};
struct SlowLink {
  RankId from{};
  RankId to{};
  double factor = 1;
  Duration added{};
  bool ahead = false;
  bool operator==(const SlowLink&) const = default;
};

// Options of EmulateStep().
struct EmulateOptions {
  // The links, instead of the plan's own.
  std::optional<SharedLinks> links{};
  // Whether to fill in spans of waits and transfers and the memory timeline.
  // Without them, only task spans and the finish are filled in, which is
  // faster.
  bool full_trace = true;
  std::vector<SlowRank> slow_ranks{};
  std::vector<SlowLink> slow_links{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_EMULATE_OPTIONS_H_
