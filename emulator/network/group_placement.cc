#include "emulator/network/group_placement.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"

namespace pipeloom::emulator {
namespace {

bool OverReplicas(const CollectiveOp& op) {
  return op.group == GroupKind::kData || op.group == GroupKind::kExpertData;
}

// Returns the number of neighbouring GPUs that fast links join.
int64_t JoinedGpus(const ClusterSpec& cluster) {
  return std::max<int64_t>(cluster.gpus_per_node, cluster.domain.gpus);
}

// Returns the number of replicas over which the experts of a layer are spread.
int64_t ExpertSpread(const ParallelLayout& parallel) {
  return std::clamp<int64_t>(
      CeilDiv(parallel.expert_gpus(), int64_t{parallel.gpus_per_rank()}), 1,
      parallel.dp);
}

// Returns the distance between the first GPUs of a rank in neighbouring
// replicas.
int64_t ReplicaStride(const ParallelLayout& parallel) {
  return int64_t{parallel.gpus_per_rank()} *
         (parallel.order == GpuOrder::kPipelineInside ? parallel.pp : 1);
}

}  // namespace

int64_t GroupSpan(const ParallelLayout& parallel, const CollectiveOp& op) {
  if (op.group == GroupKind::kTensor) return parallel.tp;
  if (op.group == GroupKind::kExpert) {
    const int64_t spread = ExpertSpread(parallel);
    return spread == 1 ? std::min<int64_t>(parallel.expert_gpus(),
                                           parallel.gpus_per_rank())
                       : ReplicaStride(parallel) * (spread - 1) +
                             parallel.gpus_per_rank();
  }
  if (!OverReplicas(op) || parallel.dp == 1) return parallel.gpus_per_rank();
  if (op.group == GroupKind::kExpertData) {
    return ReplicaStride(parallel) * parallel.dp;
  }
  // Neighbours that hold one copy of the optimizer's state are some replicas.
  return ReplicaStride(parallel) *
         std::min<int64_t>(CeilDiv(op.size, int64_t{parallel.cp}), parallel.dp);
}

int64_t GroupInNode(const ClusterSpec& cluster, const ParallelLayout& parallel,
                    const CollectiveOp& op) {
  const int64_t node = JoinedGpus(cluster);
  const auto held = [&](int64_t stride, int64_t most) {
    return std::clamp<int64_t>(node / stride, 1, std::max<int64_t>(most, 1));
  };
  const int64_t tensor =
      parallel.expert_tp > 0 ? parallel.expert_tp : parallel.tp;
  const int64_t rank = parallel.gpus_per_rank();
  const int64_t spread = ExpertSpread(parallel);
  int64_t count = 1;
  switch (op.group) {
    case GroupKind::kTensor:
      count = held(1, parallel.tp);
      break;
    case GroupKind::kContext:
      count = held(parallel.tp, parallel.cp);
      break;
    case GroupKind::kData:
      count = held(parallel.tp, parallel.cp) *
              held(ReplicaStride(parallel), parallel.dp);
      break;
    case GroupKind::kExpert:
      count = held(tensor, std::min<int64_t>(parallel.ep, rank / tensor)) *
              held(ReplicaStride(parallel), spread);
      break;
    case GroupKind::kExpertData:
      count = held(parallel.expert_gpus(), rank / parallel.expert_gpus()) *
              held(ReplicaStride(parallel) * spread, parallel.dp / spread);
      break;
  }
  return std::min(count, op.size);
}

SentBytes SentByMember(const CollectiveOp& op, int64_t in_node) {
  const double n = Real(op.size);
  const double g = Real(std::clamp<int64_t>(in_node, 1, op.size));
  if (op.choices == 0) {
    return {.network = op.bytes * (n - g) / n, .node = op.bytes * (g - 1) / n};
  }
  const auto reached = [&](double members) {
    return members * (1 - std::pow(1 - 1 / members, Real(op.choices)));
  };
  const double nodes = n / g;
  const double to_nodes = reached(nodes) * (nodes - 1) / nodes;
  // A copy that arrives from the network is on one of its GPUs already.
  const double copies = reached(n) * (n - 1) / n - to_nodes;
  return {.network = op.bytes * to_nodes,
          .node = op.bytes * std::max(copies, 0.0)};
}

LinkSpec RingLinkBetweenNodes(const ClusterSpec& cluster,
                              const ParallelLayout& parallel,
                              const CollectiveOp& op) {
  const double in_node = Real(GroupInNode(cluster, parallel, op));
  const int32_t sharing = cluster.gpus_per_nic();
  double rate = cluster.inter_node.bandwidth.bytes_per_second;
  if (op.group == GroupKind::kTensor) {
    rate *= Real(cluster.gpus_per_node) / sharing;
  } else if (sharing == 1) {
    rate *= in_node;
  } else if (in_node == 1) {
    rate /= sharing;
  } else {
    rate *= in_node / cluster.gpus_per_node;
  }
  LinkSpec link = cluster.inter_node;
  link.bandwidth.bytes_per_second =
      std::min(cluster.intra_node.bandwidth.bytes_per_second, rate);
  return link;
}

}  // namespace pipeloom::emulator
