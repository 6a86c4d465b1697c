// The choices that a search tries before all others: a list of few, each of
// which is good where those before it are not.
#ifndef PIPELOOM_PLANNER_SEARCH_FIRST_CHOICES_H_
#define PIPELOOM_PLANNER_SEARCH_FIRST_CHOICES_H_

#include <vector>

#include "planner/moves/order_search.h"

namespace pipeloom::planner {

// Returns them, the best first, for steps with and without memory limits.
std::vector<OrderChoice> FirstChoices(const OrderUnits& units, bool limited);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_FIRST_CHOICES_H_
