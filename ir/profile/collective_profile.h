// Measured times of collectives and transfers between GPUs of one type, and the
// constants of the model for groups beyond the measurements.
//
// Sizes are those of the full buffer: the input of all_reduce, the result of
// all_gather, the input of reduce_scatter, the buffer of one rank in
// all_to_all, the tensor of send_recv.
#ifndef PIPELOOM_IR_PROFILE_COLLECTIVE_PROFILE_H_
#define PIPELOOM_IR_PROFILE_COLLECTIVE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/profile/op_query.h"

namespace pipeloom {

// Times of one operation for one group size and kind of link.
struct CollectiveCurve {
  OpType op = OpType::kAllReduce;
  QuerySpan span = QuerySpan::kNode;
  int64_t ranks = 0;
  std::vector<int64_t> bytes{};  // Ascending.
  std::vector<double> us{};      // Parallel to `bytes`; not descending.
  // Sizes among `bytes` whose times are estimates from the shape of other
  // curves instead of measurements; ascending.
  std::vector<int64_t> estimated{};
  bool operator==(const CollectiveCurve&) const = default;
};

// Measured collectives of a GPU type, with the constants of their model.
struct CollectiveProfile {
  // Sorted by op, span, ranks; no two equal.
  std::vector<CollectiveCurve> curves{};
  // Model of traffic between nodes: the usable share of the NICs of each GPU
  // (0: no such model) and the number of GPUs of a node.
  double nic_bytes_per_second = 0;
  int64_t gpus_per_node = 8;
  // Bus bandwidth of a ring inside a node, for groups without a curve.
  double node_bytes_per_second = 0;
  // Latencies of the links, as a cluster file gives them, for which the curves
  // and the model hold; 0: not known, so that those of a cluster change no
  // time.
  double node_latency_us = 0;
  double nic_latency_us = 0;
  // Factors by which computation and communication last longer while they
  // overlap.
  double compute_slowdown = 1;
  double communication_slowdown = 1;
  std::string source{};
  bool empty() const { return curves.empty() && node_bytes_per_second <= 0; }
  bool operator==(const CollectiveProfile&) const = default;
};

// Checks the profile: sizes ascend, times are positive and do not descend,
// counts are equal, the op is a collective, ranks >= 2, slowdowns are in [1,
// 10]. Returns InvalidArgument that names the curve.
absl::Status ValidateCollectiveProfile(const CollectiveProfile& profile);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PROFILE_COLLECTIVE_PROFILE_H_
