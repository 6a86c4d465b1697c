// The classic schedules of a graph, as starting points of a search: with them
// among its first answers it is never worse than the best of them.
#ifndef PIPELOOM_PLANNER_ORDERS_CLASSIC_ORDERS_H_
#define PIPELOOM_PLANNER_ORDERS_CLASSIC_ORDERS_H_

#include <vector>

#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Returns those orders of gpipe, 1f1b, interleaved, zb-h1, zb-v, dualpipe-v
// and, under a memory limit, v-half and v-min that can be made. They may
// contradict the graph or break its limits: the caller checks. Returns none for
// graphs that the classics are not made for: with microbatches of unequal
// structure, with sub-microbatches, or with a number of stages that is not a
// multiple of the ranks. O(tasks); v-half and v-min take milliseconds for
// thousands of tasks.
std::vector<RankOrders> ClassicOrders(const StageGraph& graph);

// Returns whether no microbatch has more than 1.3 times the mean work. The
// factor was chosen on llama3-70b (tp 2, pp 16) and dip-vlm-s. O(tasks).
bool MicrobatchesAreAlike(const StageGraph& graph);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_ORDERS_CLASSIC_ORDERS_H_
