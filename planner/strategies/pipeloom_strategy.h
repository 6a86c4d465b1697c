// The strategy of this project: each module in segments of its own, backward
// split, and a fresh search for the best schedule every step.
#ifndef PIPELOOM_PLANNER_STRATEGIES_PIPELOOM_STRATEGY_H_
#define PIPELOOM_PLANNER_STRATEGIES_PIPELOOM_STRATEGY_H_

#include <memory>

#include "planner/strategy.h"

namespace pipeloom::planner {

// Makes the strategy.
std::unique_ptr<Strategy> MakePipeloom();

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_PIPELOOM_STRATEGY_H_
