#include "planner/job/warm_up.h"

#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "planner/step/plan_step.h"
#include "planner/step/sample_steps.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kSteps = 4;

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> WarmUp(
    const PreparedJob& job, const BatchMetadata& sample, uint64_t seed,
    const SearchBudget& budget) {
  std::vector<std::shared_ptr<const CarriedStep>> lessons;
  if (dynamic_cast<const StartsFromOthers*>(job.strategy) == nullptr) {
    return lessons;
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<partition::PackedStep> steps,
      SampleSteps(*job.costs, FullSample(job.costs->job(), sample), kSteps));
  const auto number = static_cast<double>(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    PlanInput input;
    input.packed = &steps[i];
    input.seed = seed;
    input.budget = budget.PartUntil(static_cast<double>(i + 1) / number, 0);
    input.budget.max_evaluations =
        budget.max_evaluations / static_cast<int64_t>(steps.size());
    input.carried = lessons;
    input.needs_bound = false;
    const absl::StatusOr<PlanResult> planned = PlanStep(job, input);
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    if (absl::IsResourceExhausted(planned.status())) continue;
    PIPELOOM_RETURN_IF_ERROR(planned.status());
    if (planned->carried == nullptr) continue;
    CarriedStep lesson = *planned->carried;
    // A long search says nothing of how quick plans do against a short one.
    lesson.quick_ratio = 0;
    lessons.push_back(std::make_shared<const CarriedStep>(std::move(lesson)));
  }
  return lessons;
}

}  // namespace pipeloom::planner
