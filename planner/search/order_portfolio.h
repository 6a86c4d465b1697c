// The choices that a search starts with.
#ifndef PIPELOOM_PLANNER_SEARCH_ORDER_PORTFOLIO_H_
#define PIPELOOM_PLANNER_SEARCH_ORDER_PORTFOLIO_H_

#include <vector>

#include "planner/core/flat_graph.h"
#include "planner/moves/order_search.h"

namespace pipeloom::planner {

// Rules, preferences, patience, target-time patterns and a few orders by load,
// in turns of one of each kind, the best guess of a kind first: on a large
// graph there may be time for a handful only. Deterministic.
std::vector<OrderChoice> OrderPortfolio(const FlatGraph& graph,
                                        const OrderUnits& units);

// Where one microbatch has at least twice the mean work (a giant clip), choices
// that spread microbatches over the step, the short ones first or the long
// ones, at several paces: what forward-backward improvement makes most of
// (planner/construct/forward_backward.h). Else none: moves do as well there.
std::vector<OrderChoice> SpreadChoices(const OrderUnits& units);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_ORDER_PORTFOLIO_H_
