// Options of the emulation of a step: conditions that are not in the plan.
#ifndef PIPELOOM_EMULATOR_STEP_EMULATE_OPTIONS_H_
#define PIPELOOM_EMULATOR_STEP_EMULATE_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "ir/ids.h"

namespace pipeloom::emulator {

// Which transfers share a link.
enum class LinkSharing {
  kNone,     // Transfers never wait for each other.
  kPerPair,  // One at a time from each rank to each other rank.
  // One at a time between two ranks, in either direction: both use one queue.
  kBothWays,
  kPerRank,  // One at a time out of each rank, and one at a time into it.
  kPerNic,   // One at a time out of and into each network card (`nic_of_rank`).
  // All transfers of a card at once: each gets 1/n of its rate, where n is the
  // larger of the numbers of transfers on the card that it leaves and on the
  // card that it reaches.
  kFairNic,
};

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
  LinkSharing sharing = LinkSharing::kPerPair;
  // Whether every send blocks its rank until the transfer's occupancy is over.
  bool blocking_sends = false;
  // Whether to fill in spans of waits and transfers and the memory timeline.
  // Without them, only task spans and the finish are filled in, which is
  // faster.
  bool full_trace = true;
  // Bandwidth of the copy stream, for Offload and Fetch, which a plan does not
  // have. 0: copies take no time.
  Bandwidth host_bandwidth{};
  // The network card and the node of each rank, counted from 0, for kPerNic and
  // kFairNic. Empty: each rank has its own. Transfers between ranks of one card
  // or one node do not use the cards.
  std::vector<int32_t> nic_of_rank{};
  std::vector<int32_t> node_of_rank{};
  // Nor do transfers between nodes that are at most ring_hops apart on a ring
  // of `ring_nodes`.
  int32_t ring_hops = 0;
  int32_t ring_nodes = 0;
  // The link to host memory of each rank, counted from 0: copies of ranks that
  // share one run one at a time. Empty: each rank has its own.
  std::vector<int32_t> host_link_of_rank{};
  std::vector<SlowRank> slow_ranks{};
  std::vector<SlowLink> slow_links{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_EMULATE_OPTIONS_H_
