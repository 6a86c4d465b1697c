// Weight gradients in gaps: list schedules that keep the order of forwards and
// backwards and run weight gradients where a rank would wait, as zero-bubble
// schedules do (Qi et al., 2024, "Zero bubble pipeline parallelism"), whatever
// the stages, the order and the memory limits.
#ifndef PIPELOOM_PLANNER_CONSTRUCT_FILL_WEIGHT_GRADS_H_
#define PIPELOOM_PLANNER_CONSTRUCT_FILL_WEIGHT_GRADS_H_

#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Returns the best of two list schedules in which weight gradients are the last
// choice of every rank: they run where it would wait, or where memory leaves
// room for nothing else. Forwards and backwards keep the order of `orders` as
// far as memory and waiting allow. The result may still be longer than
// `orders`. Empty if the graph has no weight gradients, or if some microbatch
// alone does not fit. Cost: that of two list schedules. REQUIRES: `orders` has
// every task of `graph` once, and TimeSchedule accepts it.
RankOrders FillWithWeightGrads(const StageGraph& graph,
                               const RankOrders& orders);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CONSTRUCT_FILL_WEIGHT_GRADS_H_
