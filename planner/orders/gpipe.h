// GPipe (Huang et al., 2019): all forwards, then all backwards, the last
// microbatch first.
#ifndef PIPELOOM_PLANNER_ORDERS_GPIPE_H_
#define PIPELOOM_PLANNER_ORDERS_GPIPE_H_

#include "planner/orders/virtual_pipeline.h"

namespace pipeloom::planner {

// Makes the orders.
RankOrders GPipeOrders(const VirtualPipeline& pipeline);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_GPIPE_H_
