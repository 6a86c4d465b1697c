// Megatron's interleaved 1F1B (Narayanan et al., 2021): v chunks a rank;
// microbatches go in groups of p through chunk 0, then 1, and so on; rank r
// runs 2 (p - r - 1) + (v - 1) p forwards before the first backward.
//
// The rule is made for m a multiple of p. For other m there are two ways, and
// the better of those that are legal is taken: a last group that is smaller
// (Megatron-Core's schedule table), and a last group filled up with
// microbatches that do nothing, which is always legal.
#ifndef PIPELOOM_PLANNER_ORDERS_INTERLEAVED_H_
#define PIPELOOM_PLANNER_ORDERS_INTERLEAVED_H_

#include "absl/status/statusor.h"
#include "planner/orders/virtual_pipeline.h"

namespace pipeloom::planner {

// Makes the orders.
absl::StatusOr<RankOrders> InterleavedOrders(const VirtualPipeline& pipeline);

// Makes the order of Megatron-Core's stock schedule: 1F1B for one segment, else
// interleaved with the smallest group that it accepts
// (microbatch_group_size_per_vp_stage): the number of ranks, or more if the
// last group would have fewer. FailedPrecondition: there are fewer microbatches
// than ranks.
absl::StatusOr<RankOrders> StockOrders(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_INTERLEAVED_H_
