// One plan for all steps: the order that was searched for a typical step,
// replayed in every other. The comparison for planning every step anew
// (Entrain, arXiv 2605.27918, argues that a static plan with well assigned
// samples is enough).
#ifndef PIPELOOM_PLANNER_STRATEGIES_STATIC_ORDER_H_
#define PIPELOOM_PLANNER_STRATEGIES_STATIC_ORDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// The order of a typical step.
class StaticOrder {
 public:
  // Takes the order from a trace. REQUIRES: the trace is of the graph.
  StaticOrder(const StageGraph& graph, const StepTrace& trace);

  // Returns the orders in which another step's tasks run: that of their
  // counterparts (the same pass, stage, microbatch and sub-microbatch; of a
  // weight gradient that was not apart, its backward, behind which it runs). A
  // sub-microbatch beyond those of the typical microbatch goes with its last
  // one; a microbatch that had none there, or that is beyond those of the
  // typical step, goes with the nearest one that had. Free of deadlocks: among
  // the tasks whose producers have been placed, the one whose counterpart was
  // earliest goes next. O(tasks log tasks + edges).
  RankOrders For(const StageGraph& graph) const;

 private:
  int64_t PlaceOf(const Task& task) const;

  // The start in ns, keyed by microbatch and sub-microbatch.
  using Places = std::map<std::pair<MicrobatchId, int32_t>, int64_t>;
  std::map<std::pair<StageId, Pass>, Places> places_{};
};

// Returns a strategy that replays the order of a plan, under that name, which
// must outlive it. Memory choices are made anew every step, the best of ten
// levels from everything kept to the least possible. `split_backward`: whether
// weight gradients may run apart.
std::unique_ptr<Strategy> ReplayOf(const PlanResult& plan,
                                   const Partition& partition,
                                   absl::string_view name, bool split_backward);

// Plans the typical step with the job's strategy and input, and returns the
// strategy "static", which replays that order (ReplayOf): its memory choices
// are more than a static plan has, in favour of the thesis. Its partition is
// the job's. Errors are those of PlanStep.
absl::StatusOr<std::unique_ptr<Strategy>> MakeStatic(const PreparedJob& job,
                                                     const PlanInput& typical);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_STATIC_ORDER_H_
