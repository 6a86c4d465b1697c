// 1F1B (PipeDream-Flush; Narayanan et al., 2021): rank r of p runs
// min(p - r - 1, m) forwards, then one forward and one backward in turns, then
// the remaining backwards. It holds min(p - r, m) microbatches at most.
#ifndef PIPELOOM_PLANNER_ORDERS_ONE_F_ONE_B_H_
#define PIPELOOM_PLANNER_ORDERS_ONE_F_ONE_B_H_

#include "absl/status/statusor.h"
#include "planner/orders/virtual_pipeline.h"

namespace pipeloom::planner {

// Makes the orders. InvalidArgument if the pipeline has more than one segment.
absl::StatusOr<RankOrders> OneFOneBOrders(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_ONE_F_ONE_B_H_
