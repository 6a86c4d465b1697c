// Memory for classic schedules with split backwards, from earlier weight
// gradients.
#ifndef PIPELOOM_PLANNER_ORDERS_WEIGHT_GRAD_ROOM_H_
#define PIPELOOM_PLANNER_ORDERS_WEIGHT_GRAD_ROOM_H_

#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Moves weight gradients whose backward is done, oldest first, before a task
// that the rank would have no room for otherwise, as the zero-bubble heuristics
// do. No other task waits for a weight gradient, so orders stay legal.
// O(tasks).
void MakeRoomByWeightGrads(const StageGraph& graph, RankOrders* orders);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_WEIGHT_GRAD_ROOM_H_
