// Collectives without a measurement: latency and bandwidth of rings and trees
// over nodes, in the three protocols of NCCL; the fastest of them counts.
//
//   t = base + steps inside nodes * near + steps between nodes * far
//         + S * c / (busbw * share)
//
// n ranks on m nodes, g = n / m on each. A ring of all_gather or reduce_scatter
// takes n - 1 steps, m - 1 of them between nodes, and carries c = (n - 1) / n;
// all_reduce takes twice of each. Every rank drives its own NIC, so busbw =
// min(node, g * nic). A tree (all_reduce) takes 2 (g - 1 + log2 m) steps and c
// = 2 at 0.9 of the ring's busbw. all_to_all carries the part of S that leaves
// the node over one NIC and concurrently the rest over the node's links, plus
// 0.25 us for each peer.
//
// A broadcast of a whole tensor hands each block on from rank to rank, and a
// card has to have a block before it can send it:
//
//   wait = base + (n - m) * near + (m - 1) * (far + block / nic)
//
// The block is a step of the protocol's buffer or, if that is less, a channel's
// share of the tensor. There is one channel for each GPU of a node: a node of
// eight GPUs with four network cards has two channels a card.
//
// Latencies (base, near, far) and the protocols' shares of the bandwidth are
// the tuning constants of NCCL 2.2x (src/graph/tuning.cc, BSD-3). Compared with
// all-reduces of 64 MB on A100 nodes with a slow network (vidur, MIT), whose
// NIC rate was taken from two nodes of one GPU, the model is 8 % short on two
// nodes of four. Small messages took three times the model's time there
// (docs/evaluation/profiles.md).
// (docs/evaluation/profiles.md).
#ifndef PIPELOOM_EMULATOR_NETWORK_RING_MODEL_H_
#define PIPELOOM_EMULATOR_NETWORK_RING_MODEL_H_

#include <cstdint>

#include "ir/profile/op_query.h"

namespace pipeloom::emulator {

// The links of a group.
struct RingLinks {
  double node_bytes_per_second = 0;  // Bus bandwidth of a ring in a node.
  double nic_bytes_per_second = 0;   // NIC bandwidth per GPU.
  // Added to the latency of each step over the link, which is at least zero;
  // negative for links that are faster than those of the constants.
  double node_extra_us = 0;
  double nic_extra_us = 0;
};

// Ranks of a group and of each of its nodes.
struct RingGroup {
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;  // At least 1; equal to `ranks`: one node.
};

// Returns the share of its buffer that a rank sends: 2 (n - 1) / n for
// all_reduce, 1 for send_recv, else (n - 1) / n.
double WireShare(OpType op, int64_t ranks);

// Returns seconds; 0 for one rank or no bytes, infinite if a link that is
// needed has no bandwidth. REQUIRES: IsCollective(op).
double RingModelSeconds(OpType op, double bytes, const RingGroup& group,
                        const RingLinks& links);

// Returns the seconds from the beginning of a broadcast of `bytes` until its
// first block has reached all ranks. Tensors below 1 MiB take LL, others LL128.
// 0 for one rank or no bytes.
double BroadcastWaitSeconds(double bytes, const RingGroup& group,
                            const RingLinks& links);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_RING_MODEL_H_
