#include "emulator/stage/cluster_view.h"

#include <algorithm>
#include <cmath>

namespace pipeloom::emulator {
namespace {

Duration Times(Duration time, double factor) {
  if (factor == 1) return time;
  return Nanoseconds(std::llround(static_cast<double>(time.count()) * factor));
}

// Returns the factor on the links both ways between two nodes.
double SlowestLink(const ClusterSpec& cluster, int32_t a, int32_t b) {
  double there = 1;
  double back = 1;
  for (const SlowNodeLink& slow : cluster.slow_links) {
    if (slow.from_node == a && slow.to_node == b) there *= slow.factor;
    if (slow.from_node == b && slow.to_node == a) back *= slow.factor;
  }
  return std::max(there, back);
}

double SlowRing(const JobSpec& job, RankId rank) {
  const ParallelLayout& parallel = job.parallel;
  const auto node_of = [&](int32_t replica) {
    return parallel.FirstGpu(replica, rank) / job.cluster.gpus_per_node;
  };
  double factor = 1;
  for (int32_t d = 0; d < parallel.dp; ++d) {
    factor = std::max(factor, SlowestLink(job.cluster, node_of(d),
                                          node_of((d + 1) % parallel.dp)));
  }
  return factor;
}

ReplicaView ViewOf(const JobSpec& job, int32_t replica) {
  const ClusterSpec& cluster = job.cluster;
  const ParallelLayout& parallel = job.parallel;
  ReplicaView view{.replica = replica};
  const auto node_of = [&](RankId rank) {
    return parallel.FirstGpu(replica, rank) / cluster.gpus_per_node;
  };
  for (int32_t r = 0; r < parallel.pp; ++r) {
    const RankId rank(r);
    RankPlace& place = view.ranks[view.ranks.push_back({})];
    place.group = cluster.GroupOfNode(node_of(rank));
    const int32_t first = parallel.FirstGpu(replica, rank);
    for (const SlowGpu& slow : cluster.slow_gpus) {
      if (slow.gpu >= first && slow.gpu < first + parallel.gpus_per_rank()) {
        place.slow = std::max(place.slow, slow.factor);
      }
    }
  }
  if (cluster.slow_links.empty()) return view;
  for (const RankId rank : view.ranks.ids()) {
    view.ranks[rank].slow_ring = SlowRing(job, rank);
  }
  const auto ranks = static_cast<size_t>(parallel.pp);
  view.slow_links.assign(ranks * ranks, 1);
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      for (const SlowNodeLink& slow : cluster.slow_links) {
        if (slow.from_node == node_of(RankId(static_cast<int32_t>(from))) &&
            slow.to_node == node_of(RankId(static_cast<int32_t>(to)))) {
          view.slow_links[from * ranks + to] *= slow.factor;
        }
      }
    }
  }
  return view;
}

}  // namespace

ClusterViews ViewsOf(const JobSpec& job) {
  const auto replicas = static_cast<size_t>(job.parallel.dp);
  ClusterViews all;
  if (!job.cluster.is_mixed()) {
    ReplicaView& view = all.views.emplace_back();
    view.ranks = IdVector<RankId, RankPlace>(job.parallel.pp, RankPlace{});
    all.of_replica.assign(replicas, 0);
    return all;
  }
  for (size_t d = 0; d < replicas; ++d) {
    ReplicaView view = ViewOf(job, static_cast<int32_t>(d));
    const auto same = std::find_if(all.views.begin(), all.views.end(),
                                   [&](const ReplicaView& other) {
                                     return other.ranks == view.ranks &&
                                            other.slow_links == view.slow_links;
                                   });
    all.of_replica.push_back(static_cast<int32_t>(same - all.views.begin()));
    if (same == all.views.end()) all.views.push_back(std::move(view));
  }
  return all;
}

LinkTimes TransferBetween(const JobSpec& job, const ReplicaView& view,
                          RankId from, RankId to, Bytes payload) {
  if (from == to) return {};
  const ClusterSpec& cluster = job.cluster;
  const int32_t a = job.parallel.FirstGpu(view.replica, from);
  const int32_t b = job.parallel.FirstGpu(view.replica, to);
  const LinkSpec& link = cluster.Link(a, b);
  Duration busy = TransferTime(payload, link.bandwidth);
  if (!cluster.Joined(a, b)) {
    busy *= std::min(cluster.gpus_per_nic(), job.parallel.gpus_per_rank());
  }
  const double slow = view.SlowLink(from, to);
  busy = Times(busy, slow);
  return {.time = Times(link.latency, slow) + busy, .occupancy = busy};
}

SharedLinks SharedLinksOf(const JobSpec& job, int32_t replica) {
  const ClusterSpec& cluster = job.cluster;
  SharedLinks links;
  links.host_bandwidth = cluster.device.host_bandwidth;
  links.blocking_sends = job.setup.overlap == CommunicationOverlap::kNone;
  if (cluster.nic_sharing == NicSharing::kNone) return links;
  links.sharing = cluster.nic_sharing == NicSharing::kFair
                      ? LinkSharing::kFairNic
                      : LinkSharing::kPerNic;
  const int32_t base = job.parallel.FirstGpu(replica, RankId(0));
  const int32_t first_nic = base / cluster.gpus_per_nic();
  const int32_t domain =
      cluster.domain.gpus > 0 ? cluster.domain.gpus : cluster.gpus_per_node;
  for (int32_t r = 0; r < job.parallel.pp; ++r) {
    const int32_t gpu = job.parallel.FirstGpu(replica, RankId(r));
    links.nic_of_rank.push_back(gpu / cluster.gpus_per_nic() - first_nic);
    links.node_of_rank.push_back(gpu / domain - base / domain);
  }
  if (cluster.domain.kind == DomainKind::kHopRing) {
    links.ring_nodes = cluster.num_nodes;
    links.ring_hops = cluster.domain.hops;
  }
  return links;
}

}  // namespace pipeloom::emulator
