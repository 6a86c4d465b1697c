// The links that a plan keeps.
#ifndef PIPELOOM_PLANNER_LOWER_KEPT_LINKS_H_
#define PIPELOOM_PLANNER_LOWER_KEPT_LINKS_H_

#include "emulator/stage/stage_cost.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/shared_links.h"

namespace pipeloom::planner {

// Returns the links of the model's ranks as `plan` keeps them. A plan that
// copies nothing to the host does not keep the rate of such copies: then most
// plans keep no links, and earlier versions can read them. O(instructions).
SharedLinks KeptLinks(const emulator::StageCostModel& costs,
                      const ExecutionPlan& plan);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LOWER_KEPT_LINKS_H_
