// One order of passes for replicas that wait for each other within passes
// (emulator/cluster/meeting_replicas.h): with an order of its own, each would
// wait for ever for passes that others run at another time.
#ifndef PIPELOOM_PLANNER_JOB_COMMON_ORDER_H_
#define PIPELOOM_PLANNER_JOB_COMMON_ORDER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// An order that replicas share. Immutable; may be used by several threads.
class CommonOrder {
 public:
  // Searches an order for the replicas that input.replica meets: plans, as
  // PlanStep does, a step whose microbatches are, for each number, that of the
  // replica where it takes most time. Keeps pointers to `job`'s strategy and
  // costs. Errors are those of PlanStep.
  static absl::StatusOr<CommonOrder> Search(const PreparedJob& job,
                                            const PlanInput& input);

  // The same from the plan of a searched step, which an earlier call found.
  CommonOrder(const PreparedJob& job,
              std::shared_ptr<const PlanResult> searched);

  // Plans input.replica, one of these, in this order. Its memory is chosen
  // anew; where weights are gathered or gradients reduced in passes, weight
  // gradients run apart from backwards in all replicas or in none, as most do
  // in the searched step. A sub-microbatch
  // that the searched step does not have goes with its nearest neighbour
  // (planner/strategies/static_order.h), so that replicas whose microbatches
  // have the same modules get one order of passes. Errors are those of
  // PlanStep.
  absl::StatusOr<PlanResult> Plan(const PlanInput& input) const;

  // Returns the plan of the searched step.
  const std::shared_ptr<const PlanResult>& searched() const {
    return searched_;
  }

 private:
  std::shared_ptr<const PlanResult> searched_{};
  std::shared_ptr<const Strategy> replay_{};
  PreparedJob job_{};  // With `replay_` as its strategy.
};

// Returns whether the job's replicas need one: they meet. Plans within the
// limits of a trainer have the trainer's order.
bool NeedsCommonOrder(const PreparedJob& job);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_JOB_COMMON_ORDER_H_
