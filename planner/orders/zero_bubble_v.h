// ZB-V (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6):
// two chunks a rank in a V, backward split, within the memory of 1F1B: 2 p
// activations of a chunk. If forward, backward and weight gradient take equal
// times, no rank waits between its first and its last pass.
//
// There are two ways to make it:
// - The heuristic of the authors' scheduler on a pipeline of typical times.
//   After a warm-up that reaches every rank's first backward in time, one
//   backward and one forward run in turns, the second chunk first if its input
//   has arrived; weight gradients fill waits. It is tried with and without
//   overflowing waits before forwards and before backwards, and each again with
//   the longest wait of the attempt before as the allowed one.
// - The fixed order of the paper's figure, which needs no times and is always
//   legal (torch.distributed.pipelining's ScheduleZBVZeroBubble is the same).
#ifndef PIPELOOM_PLANNER_ORDERS_ZERO_BUBBLE_V_H_
#define PIPELOOM_PLANNER_ORDERS_ZERO_BUBBLE_V_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

// Makes the fixed order. For fewer than 2 p - 1 microbatches it is that of 2 p
// - 1, some of which do nothing.
PassPrograms FixedZeroBubbleVPrograms(int32_t ranks, int32_t microbatches);

// Makes the heuristic's programs, or the fixed order if every attempt gets
// stuck. O(ranks x microbatches).
PassPrograms ZeroBubbleVPrograms(int32_t ranks, int32_t microbatches,
                                 const PassTimes& times);

// Makes the orders. InvalidArgument if the pipeline has more than two segments.
absl::StatusOr<RankOrders> ZeroBubbleVOrders(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_ZERO_BUBBLE_V_H_
