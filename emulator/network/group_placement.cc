#include "emulator/network/group_placement.h"

#include <algorithm>

#include "base/numeric.h"

namespace pipeloom::emulator {
namespace {

bool OverReplicas(const ParallelLayout& parallel, const CollectiveOp& op) {
  return op.group == GroupKind::kData || op.group == GroupKind::kExpertData ||
         (op.group == GroupKind::kExpert && parallel.ep > parallel.cp);
}

}  // namespace

int64_t GroupSpan(const ParallelLayout& parallel, const CollectiveOp& op) {
  if (op.group == GroupKind::kTensor) return parallel.tp;
  if (!OverReplicas(parallel, op) || parallel.dp == 1) {
    return parallel.gpus_per_rank();
  }
  return parallel.order == GpuOrder::kPipelineInside
             ? parallel.num_gpus()
             : int64_t{parallel.gpus_per_rank()} * parallel.dp;
}

int64_t GroupInNode(const ClusterSpec& cluster, const ParallelLayout& parallel,
                    const CollectiveOp& op) {
  const int64_t node = cluster.gpus_per_node;
  const auto held = [&](int64_t stride, int64_t most) {
    return std::clamp<int64_t>(node / stride, 1, std::max<int64_t>(most, 1));
  };
  int64_t count = 1;
  if (op.group == GroupKind::kTensor) {
    count = held(1, parallel.tp);
  } else {
    count = held(parallel.tp, parallel.cp);
    if (OverReplicas(parallel, op)) {
      const int64_t between =
          parallel.order == GpuOrder::kPipelineInside ? parallel.pp : 1;
      count *= held(parallel.gpus_per_rank() * between, parallel.dp);
    }
  }
  return std::min(count, op.size);
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
