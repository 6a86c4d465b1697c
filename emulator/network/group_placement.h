// Where the groups of collectives lie on a cluster's nodes, and the link that a
// ring over several nodes has.
#ifndef PIPELOOM_EMULATOR_NETWORK_GROUP_PLACEMENT_H_
#define PIPELOOM_EMULATOR_NETWORK_GROUP_PLACEMENT_H_

#include <cstdint>

#include "emulator/ops/op_graph.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/parallel_layout.h"

namespace pipeloom::emulator {

// Neighbouring GPUs from the group's first to its last.
int64_t GroupSpan(const ParallelLayout& parallel, const CollectiveOp& op);

// How many of the group are on a node.
int64_t GroupInNode(const ClusterSpec& cluster, const ParallelLayout& parallel,
                    const CollectiveOp& op);

// The link of an all-gather or reduce-scatter over several nodes. Each member
// on a node brings its card, or its share of one; a tensor group has all cards
// of its nodes. Where cards are shared, rings over replicas that have several
// members on a node all leave it over one: so the measured steps say
// (docs/validation.md, vtrain_multi).
LinkSpec RingLinkBetweenNodes(const ClusterSpec& cluster,
                              const ParallelLayout& parallel,
                              const CollectiveOp& op);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_GROUP_PLACEMENT_H_
