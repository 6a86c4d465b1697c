// The choices that a search starts with.
#ifndef PIPELOOM_PLANNER_SEARCH_ORDER_PORTFOLIO_H_
#define PIPELOOM_PLANNER_SEARCH_ORDER_PORTFOLIO_H_

#include <vector>

#include "planner/core/flat_graph.h"
#include "planner/moves/order_search.h"

namespace pipeloom::planner {

// Returns rules, preferences, patience, target-time patterns and a few orders
// by load, one of each kind in turns and the best guess of a kind first, as on
// a large graph there may only be time for a few. Deterministic.
std::vector<OrderChoice> OrderPortfolio(const FlatGraph& graph,
                                        const OrderUnits& units);

// Returns choices that spread microbatches over the step at several paces, the
// short or the long ones first, for steps with a dominant microbatch: one with
// at least twice the mean work. Forward-backward improvement gains most from
// these (planner/construct/forward_backward.h). Returns none for other steps,
// where moves do as well.
std::vector<OrderChoice> SpreadChoices(const OrderUnits& units);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_ORDER_PORTFOLIO_H_
