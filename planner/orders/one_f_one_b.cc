#include "planner/orders/one_f_one_b.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pipeloom::planner {

absl::StatusOr<RankOrders> OneFOneBOrders(const VirtualPipeline& pipeline) {
  if (pipeline.num_segments() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "1f1b is for 1 segment; the pipeline has %d", pipeline.num_segments()));
  }
  const int32_t m = pipeline.num_microbatches();
  RankOrders orders(pipeline.num_ranks());
  for (const RankId r : orders.ids()) {
    orders[r].reserve(pipeline.graph().tasks_of(r).size());
    const int32_t warm_up = std::min(pipeline.num_ranks() - r.value() - 1, m);
    for (int32_t i = 0; i < warm_up; ++i) {
      pipeline.AppendForward(r, 0, i, &orders[r]);
    }
    for (int32_t i = 0; i < m; ++i) {
      pipeline.AppendForward(r, 0, warm_up + i, &orders[r]);
      pipeline.AppendBackward(r, 0, i, &orders[r]);
    }
  }
  return orders;
}

}  // namespace pipeloom::planner
