// Links as resources that serve one transfer at a time.
#ifndef PIPELOOM_EMULATOR_RESOURCE_H_
#define PIPELOOM_EMULATOR_RESOURCE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/units.h"
#include "emulator/emulate_step.h"
#include "ir/ids.h"

namespace pipeloom::emulator {

// Serves transfers in the order in which they are claimed: the caller claims
// each when both ends are ready, in order of time, so a later one never
// overtakes (as on a stream).
class Links {
 public:
  Links(LinkSharing sharing, int32_t num_ranks)
      : sharing_(sharing), ports_(num_ranks) {}

  // When a transfer that is ready at `ready` begins.
  SimTime Claim(RankId from, RankId to, SimTime ready, Duration occupancy) {
    switch (sharing_) {
      case LinkSharing::kNone:
        return ready;
      case LinkSharing::kPerPair: {
        SimTime& free = PairFree(from, to);
        const SimTime start = std::max(ready, free);
        free = start + occupancy;
        return start;
      }
      case LinkSharing::kPerRank: {
        SimTime& out = ports_[from].out_free;
        SimTime& in = ports_[to].in_free;
        const SimTime start = std::max({ready, out, in});
        out = start + occupancy;
        in = start + occupancy;
        return start;
      }
    }
    return ready;
  }

 private:
  struct Port {
    SimTime out_free{};
    SimTime in_free{};
    // Few peers a rank: a list is the fastest map.
    std::vector<std::pair<RankId, SimTime>> pair_free{};
  };

  SimTime& PairFree(RankId from, RankId to) {
    auto& peers = ports_[from].pair_free;
    for (auto& [peer, free] : peers) {
      if (peer == to) return free;
    }
    return peers.emplace_back(to, kStepStart).second;
  }

  LinkSharing sharing_;
  IdVector<RankId, Port> ports_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_RESOURCE_H_
