// ZB-H1, also called ZB1P (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
// 2024, section 3.1): 1F1B with the backward split and weight gradients put
// where a rank would wait, within the memory of 1F1B: at most p microbatches a
// rank. ZB-2p is the same with at most 2 p.
//
// The heuristic of that section works on a pipeline of typical times. After the
// warm-up, one forward and one backward run in turns; weight gradients fill
// waits, and overflow them if this makes no rank's wait the longest. Three
// switches (another forward in the warm-up even if it delays the first
// backward; backward before a forward that can wait; overflow) give eight
// programs, of which the one with the shortest span of any rank is taken.
#ifndef PIPELOOM_PLANNER_ORDERS_ZERO_BUBBLE_H1_H_
#define PIPELOOM_PLANNER_ORDERS_ZERO_BUBBLE_H1_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

// Makes the best of the eight programs of at most `limit` microbatches a rank.
// REQUIRES: limit >= ranks. O(ranks x microbatches).
PassPrograms ZeroBubbleH1Programs(int32_t ranks, int32_t microbatches,
                                  const PassTimes& times, int32_t limit);

// Make the orders. InvalidArgument if the pipeline has more than one segment.
absl::StatusOr<RankOrders> ZeroBubbleH1Orders(const VirtualPipeline& pipeline);
absl::StatusOr<RankOrders> ZeroBubble2pOrders(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_ZERO_BUBBLE_H1_H_
