// V-Half and V-Min (Qi et al., "Pipeline Parallelism with Controllable Memory",
// NeurIPS 2024): two chunks a rank in a V, backward split, and about a half or
// a third of the activations of 1F1B.
//
// A schedule is made from a building block, the slots in which one microbatch
// passes each rank (its forward down and up, then its backward down and up):
// the block is repeated every six slots, and how long an activation is held
// follows from its offsets alone, so memory is balanced over the ranks. V-Min
// has offsets of one slot between ranks, V-Half two on the way down and one on
// the way up. Then, as in the paper: weight gradients take the free slots, the
// warm-up and the end are squeezed (every pass goes to the earliest slot after
// its input that does not raise the peak), and what remains is run eagerly.
//
// All times count as one slot, so the order does not depend on them; of
// unequal passes it is legal, and as long as the longest makes it.
#ifndef PIPELOOM_PLANNER_ORDERS_V_SCHEDULE_H_
#define PIPELOOM_PLANNER_ORDERS_V_SCHEDULE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

enum class VMemory { kHalf, kMin };

// For any ranks >= 1 and microbatches >= 1. O(passes x slots) at worst;
// milliseconds for 8 ranks and 64 microbatches.
PassPrograms VSchedulePrograms(VMemory memory, int32_t ranks,
                               int32_t microbatches);

// InvalidArgument when the pipeline has more than two segments.
absl::StatusOr<RankOrders> VScheduleOrders(VMemory memory,
                                           const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_V_SCHEDULE_H_
