// The links that the ranks of a plan share: which transfers and copies wait for
// each other.
#ifndef PIPELOOM_IR_PLAN_SHARED_LINKS_H_
#define PIPELOOM_IR_PLAN_SHARED_LINKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"

namespace pipeloom {

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

struct SharedLinks {
  LinkSharing sharing = LinkSharing::kPerPair;
  // Whether every send blocks its rank until the transfer's occupancy is over.
  bool blocking_sends = false;
  // Bandwidth of the copy stream, for Offload and Fetch. 0: copies take no
  // time.
  Bandwidth host_bandwidth{};
  // The network card and the node of each rank, counted from 0, for kPerNic and
  // kFairNic. Empty: each rank has its own. Transfers between ranks of one card
  // or one node do not use the cards.
  std::vector<int32_t> nic_of_rank{};
  std::vector<int32_t> node_of_rank{};
  // The same holds for transfers between nodes that are at most `ring_hops`
  // apart on a ring with `ring_nodes` nodes.
  int32_t ring_hops = 0;
  int32_t ring_nodes = 0;
  // The link to host memory of each rank, counted from 0: copies of ranks that
  // share one run one at a time. Empty: each rank has its own.
  std::vector<int32_t> host_link_of_rank{};
  bool operator==(const SharedLinks&) const = default;
};

// Checks the links of a plan of so many ranks: lists by rank are empty or have
// one entry for each, in [0, 2^24); all else is finite and >= 0.
// InvalidArgument names the field.
absl::Status CheckLinks(const SharedLinks& links, int32_t num_ranks);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_SHARED_LINKS_H_
