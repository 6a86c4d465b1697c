// The hardware under the ranks of a replica, from a ClusterSpec: devices,
// slowness, links and network cards. Replicas that are alike share one view.
//
// A rank is as slow as the slowest of its GPUs. A transfer between ranks is
// sent by all GPUs of the rank at once; those that share a network card share
// its rate. Pure functions; thread-safe.
#ifndef PIPELOOM_EMULATOR_STAGE_CLUSTER_VIEW_H_
#define PIPELOOM_EMULATOR_STAGE_CLUSTER_VIEW_H_

#include <cstdint>
#include <vector>

#include "base/strong_id.h"
#include "base/units.h"
#include "emulator/step/emulate_step.h"
#include "ir/ids.h"
#include "ir/job/job_spec.h"

namespace pipeloom::emulator {

// The hardware under one rank.
struct RankPlace {
  int32_t group = -1;  // Index into ClusterSpec::node_groups; -1: none.
  double slow = 1;     // Factor on the time of what the rank computes.
  // Factor on the time of collectives over the replicas of the rank: that of
  // the slowest link between neighbours on a ring, as each waits for it.
  double slow_ring = 1;
  bool operator==(const RankPlace&) const = default;
};

// The hardware under the ranks of a replica.
struct ReplicaView {
  int32_t replica = 0;  // The first replica with this view.
  IdVector<RankId, RankPlace> ranks{};
  // Factors on the time of transfers, indexed by from * ranks + to. Empty: all
  // 1.
  std::vector<double> slow_links{};

  // Returns the place of a rank; the cluster's own device for a rank that is
  // not in `ranks`.
  RankPlace PlaceOf(RankId rank) const {
    return ranks.Contains(rank) ? ranks[rank] : RankPlace{};
  }
  // Returns the factor on the time of transfers between two ranks.
  double SlowLink(RankId from, RankId to) const {
    return slow_links.empty() ? 1
                              : slow_links[static_cast<size_t>(
                                    from.value() * ranks.size() + to.value())];
  }
};

// The views of all replicas.
struct ClusterViews {
  std::vector<ReplicaView> views{};   // All distinct views.
  std::vector<int32_t> of_replica{};  // Index into `views`.
};

// Returns the views of all replicas: one view if nothing is mixed or slow.
// REQUIRES: ValidateJobSpec(job).ok(). O(GPUs of the job).
ClusterViews ViewsOf(const JobSpec& job);

// The times of a transfer.
struct LinkTimes {
  Duration time{};       // Until it has arrived.
  Duration occupancy{};  // The part that keeps the links busy.
};
// Returns the times of a transfer of `payload` bytes per GPU between two ranks
// of the view.
LinkTimes TransferBetween(const JobSpec& job, const ReplicaView& view,
                          RankId from, RankId to, Bytes payload);

// Returns the links of a replica's ranks, network cards and nodes of the
// cluster, with blocking sends if the setup has them. Cards and nodes are
// counted from the replica's first.
SharedLinks SharedLinksOf(const JobSpec& job, int32_t replica = 0);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_CLUSTER_VIEW_H_
