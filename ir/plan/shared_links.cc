#include "ir/plan/shared_links.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

absl::Status CheckByRank(const char* field, const std::vector<int32_t>& values,
                         int32_t num_ranks) {
  if (!values.empty() && values.size() != static_cast<size_t>(num_ranks)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %d entries; it must have one for each of %d ranks, or none",
        field, values.size(), num_ranks));
  }
  for (size_t r = 0; r < values.size(); ++r) {
    if (values[r] < 0 || values[r] >= (1 << 24)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s[%d] is %d; it must be in [0, 2^24)", field, r, values[r]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLinks(const SharedLinks& links, int32_t num_ranks) {
  PIPELOOM_RETURN_IF_ERROR(
      CheckByRank("nic_of_rank", links.nic_of_rank, num_ranks));
  PIPELOOM_RETURN_IF_ERROR(
      CheckByRank("node_of_rank", links.node_of_rank, num_ranks));
  PIPELOOM_RETURN_IF_ERROR(
      CheckByRank("host_link_of_rank", links.host_link_of_rank, num_ranks));
  const double bandwidth = links.host_bandwidth.bytes_per_second;
  if (!std::isfinite(bandwidth) || bandwidth < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "host_bandwidth is %g bytes per second; it must be finite and >= 0",
        bandwidth));
  }
  if (links.ring_hops < 0 || links.ring_nodes < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ring_hops is %d and ring_nodes %d; both must be >= 0",
                        links.ring_hops, links.ring_nodes));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
