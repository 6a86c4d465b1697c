// One plan for all steps: the order that was searched for a typical step,
// replayed on every other. What planning every step anew is measured against
// (Entrain, arXiv 2605.27918, holds that a static plan with well assigned
// samples is enough).
#ifndef PIPELOOM_PLANNER_STRATEGIES_STATIC_ORDER_H_
#define PIPELOOM_PLANNER_STRATEGIES_STATIC_ORDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

class StaticOrder {
 public:
  // Of a typical step. REQUIRES: the trace is of the graph.
  StaticOrder(const StageGraph& graph, const StepTrace& trace);

  // The orders in which another step's tasks run: as their counterparts (the
  // same pass, stage, microbatch and sub-microbatch) did. A sub-microbatch more
  // than the typical microbatch had goes with its last one; a microbatch that
  // had none there, or is one more, as the nearest one that had. Free of
  // deadlocks: at any point the task whose counterpart was earliest goes next
  // of those whose producers have gone. O(tasks log tasks + edges).
  RankOrders For(const StageGraph& graph) const;

 private:
  int64_t PlaceOf(const Task& task) const;

  // By stage and pass; by microbatch and sub-microbatch: the start, in ns.
  std::map<std::pair<StageId, Pass>,
           std::map<std::pair<MicrobatchId, int32_t>, int64_t>>
      places_{};
};

// Plans the typical step with the job's strategy and input, and gives the
// strategy "static", which replays that order. Its memory choices are made anew
// every step, the best of nine levels from everything kept to the least that
// can be: more than a static plan has, in favour of the thesis. Its partition
// is the job's. Errors as PlanStep.
absl::StatusOr<std::unique_ptr<Strategy>> MakeStatic(const PreparedJob& job,
                                                     const PlanInput& typical);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_STATIC_ORDER_H_
