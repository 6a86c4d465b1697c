// Measured times of collectives and transfers between GPUs of one type, and
// the constants of the model for groups beyond the measurements.
//
// Sizes are those of the full buffer: what all_reduce sums, what all_gather
// ends with, what reduce_scatter begins with, what one rank of all_to_all
// holds, what send_recv carries.
#ifndef PIPELOOM_IR_PROFILE_COLLECTIVE_PROFILE_H_
#define PIPELOOM_IR_PROFILE_COLLECTIVE_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ir/profile/op_query.h"

namespace pipeloom {

// One operation, group size and link.
struct CollectiveCurve {
  OpType op = OpType::kAllReduce;
  QuerySpan span = QuerySpan::kNode;
  int64_t ranks = 0;
  std::vector<int64_t> bytes{};  // Ascending.
  std::vector<double> us{};      // By point, not descending.
  // Sizes among `bytes` that are estimates, ascending: not measured, but
  // filled in from the shape of other curves.
  std::vector<int64_t> estimated{};
  bool operator==(const CollectiveCurve&) const = default;
};

struct CollectiveProfile {
  std::vector<CollectiveCurve> curves{};  // By op, span, ranks; no two equal.
  // Between nodes, for each GPU: its share of the NICs, usable, and how many
  // GPUs a node has. 0: no such model.
  double nic_bytes_per_second = 0;
  int64_t gpus_per_node = 8;
  // Bus bandwidth of a ring inside a node, where no curve says.
  double node_bytes_per_second = 0;
  // While communication runs beside compute, each lasts so many times longer.
  double compute_slowdown = 1;
  double communication_slowdown = 1;
  std::string source{};
  bool empty() const { return curves.empty() && node_bytes_per_second <= 0; }
  bool operator==(const CollectiveProfile&) const = default;
};

// InvalidArgument names the curve: sizes that ascend, times that are positive
// and do not descend, equal counts, a collective's op, ranks >= 2, slowdowns
// in [1, 10].
absl::Status ValidateCollectiveProfile(const CollectiveProfile& profile);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PROFILE_COLLECTIVE_PROFILE_H_
