#include "planner/job/plan_deferred.h"

#include <utility>

#include "partition/batching/defer_surplus.h"

namespace pipeloom::planner {

absl::StatusOr<DeferredPlan> PlanDeferred(const PreparedJob& job,
                                          const PlanInput& input,
                                          const partition::SampleCosts& costs) {
  absl::StatusOr<PlanResult> as_it_is = PlanStep(job, input);
  if (!as_it_is.ok() && !absl::IsResourceExhausted(as_it_is.status())) {
    return as_it_is.status();
  }
  const partition::PackedStep moved =
      partition::DeferSurplus(job.costs->job(), costs, *input.packed);
  DeferredPlan result;
  if (moved.packed != input.packed->packed) {
    PlanInput other = input;
    other.packed = &moved;
    absl::StatusOr<PlanResult> deferred = PlanStep(job, other);
    if (deferred.ok()) {
      if (!as_it_is.ok() ||
          deferred->predicted.finish < as_it_is->predicted.finish) {
        result.plan = *std::move(deferred);
        result.deferred = true;
        return result;
      }
    } else if (!absl::IsResourceExhausted(deferred.status())) {
      return deferred.status();
    }
  }
  if (!as_it_is.ok()) return as_it_is.status();
  result.plan = *std::move(as_it_is);
  return result;
}

}  // namespace pipeloom::planner
