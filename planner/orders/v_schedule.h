// V-Half and V-Min (Qi et al., "Pipeline Parallelism with Controllable Memory",
// NeurIPS 2024): two chunks a rank in a V, backward split, and about one half
// or one third of the activations of 1F1B.
//
// A schedule is made from a building block: the slots in which one microbatch
// passes each rank (its forward down and up, then its backward down and up).
// The block is repeated every six slots, and how long an activation is held
// follows from its offsets alone, so memory is balanced over the ranks. V-Min
// has offsets of one slot between ranks, V-Half two on the way down and one on
// the way up. Then, as in the paper, weight gradients take the free slots, the
// warm-up and the end are squeezed (every pass goes to the earliest slot after
// its input that does not raise the peak), and the rest is run eagerly.
//
// All times count as one slot, so the order does not depend on them. With
// unequal passes it is still legal, but its length depends on the longest pass.
#ifndef PIPELOOM_PLANNER_ORDERS_V_SCHEDULE_H_
#define PIPELOOM_PLANNER_ORDERS_V_SCHEDULE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/orders/pass_program.h"

namespace pipeloom::planner {

// How much memory the schedule may use.
enum class VMemory { kHalf, kMin };

// Makes the programs for any ranks >= 1 and microbatches >= 1. O(passes x
// slots) at worst; milliseconds for 8 ranks and 64 microbatches.
PassPrograms VSchedulePrograms(VMemory memory, int32_t ranks,
                               int32_t microbatches);

// Makes the orders. InvalidArgument if the pipeline has more than two segments.
absl::StatusOr<RankOrders> VScheduleOrders(VMemory memory,
                                           const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_V_SCHEDULE_H_
