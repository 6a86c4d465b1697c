// Orders for the least memory, for steps that no other start fits.
#ifndef PIPELOOM_PLANNER_STRATEGIES_STARTS_LEAST_MEMORY_ORDERS_H_
#define PIPELOOM_PLANNER_STRATEGIES_STARTS_LEAST_MEMORY_ORDERS_H_

#include "ir/plan/schedule.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

// Shares of the memory that orders for the least memory may take, as no choice
// has both the least that is held and the least peak of all.
inline constexpr double kLeastShares[] = {1, 0.9, 0.8};

// Returns the list schedule for the least memory that any choices take, within
// a share of the room of each rank; none if some microbatch alone does not fit.
// `least`: LeastMemory (planner/memory/memory_levels.h).
RankOrders ForLeastMemory(const FlatGraph& least, double share);

// Returns orders that run groups one after another, which takes the least
// memory; none if even they do not fit.
RankOrders OneByOne(const FlatGraph& least);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_STARTS_LEAST_MEMORY_ORDERS_H_
