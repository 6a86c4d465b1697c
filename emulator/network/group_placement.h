// Placement of the groups of collectives on a cluster's nodes, and the link of
// a ring over several nodes.
#ifndef PIPELOOM_EMULATOR_NETWORK_GROUP_PLACEMENT_H_
#define PIPELOOM_EMULATOR_NETWORK_GROUP_PLACEMENT_H_

#include <cstdint>

#include "emulator/ops/op_graph.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/parallel_layout.h"

namespace pipeloom::emulator {

// Returns the number of neighbouring GPUs from the group's first to its last.
int64_t GroupSpan(const ParallelLayout& parallel, const CollectiveOp& op);

// Returns how many members of the group are on a node.
int64_t GroupInNode(const ClusterSpec& cluster, const ParallelLayout& parallel,
                    const CollectiveOp& op);

// Bytes that a member of an all-to-all sends.
struct SentBytes {
  double network = 0;  // To other nodes.
  double node = 0;     // To other GPUs over the fast links, in all.
};

// Returns what a member of an all-to-all sends, with `in_node` of the op.size
// members on each node. With `choices` k, a row goes to k members chosen
// independently: over n members it reaches n (1 - (1 - 1/n)^k) different ones,
// one of which, in the mean 1/n of them, is the sender itself. A row is sent to
// a node once and copied there.
SentBytes SentByMember(const CollectiveOp& op, int64_t in_node);

// Returns the link of an all-gather or reduce-scatter over several nodes. Each
// member on a node contributes its card, or its share of one; a tensor group
// has all cards of its nodes. If cards are shared, rings over replicas with
// several members on a node all leave it over one card, as the measured steps
// show (docs/validation.md, vtrain_multi).
LinkSpec RingLinkBetweenNodes(const ClusterSpec& cluster,
                              const ParallelLayout& parallel,
                              const CollectiveOp& op);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_GROUP_PLACEMENT_H_
