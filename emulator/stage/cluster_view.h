// What a replica's ranks run on, from a ClusterSpec: whose device, how slow,
// which links and network cards. Replicas that are alike share one view.
//
// A rank is as slow as the slowest of its GPUs. A transfer between ranks goes
// from each of their GPUs at once: those that share a network card share its
// rate. Pure functions; any thread.
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

struct RankPlace {
  int32_t group = -1;  // Into ClusterSpec::node_groups; -1: none.
  double slow = 1;     // On what the rank computes.
  bool operator==(const RankPlace&) const = default;
};

struct ReplicaView {
  int32_t replica = 0;  // The first that is so.
  IdVector<RankId, RankPlace> ranks{};
  // By rank from, then to: on the time of transfers. Empty: all 1.
  std::vector<double> slow_links{};

  // Where nothing is known of the rank: the cluster's own device.
  RankPlace PlaceOf(RankId rank) const {
    return ranks.Contains(rank) ? ranks[rank] : RankPlace{};
  }
  double SlowLink(RankId from, RankId to) const {
    return slow_links.empty() ? 1
                              : slow_links[static_cast<size_t>(
                                    from.value() * ranks.size() + to.value())];
  }
};

struct ClusterViews {
  std::vector<ReplicaView> views{};  // All different.
  std::vector<int32_t> of_replica{};
};

// One view if nothing is mixed or slow. REQUIRES: ValidateJobSpec(job).ok().
// O(GPUs of the job).
ClusterViews ViewsOf(const JobSpec& job);

// A transfer of `payload` bytes a GPU between two ranks of the view.
struct LinkTimes {
  Duration time{};       // Until it has arrived.
  Duration occupancy{};  // The part that keeps the links busy.
};
LinkTimes TransferBetween(const JobSpec& job, const ReplicaView& view,
                          RankId from, RankId to, Bytes payload);

// Sharing of links, network cards and nodes of a replica's ranks, as the
// cluster has them, and whether sends block, as the setup has it; the rest of
// the options as they are by default.
EmulateOptions NetworkOptions(const JobSpec& job, int32_t replica = 0);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_CLUSTER_VIEW_H_
