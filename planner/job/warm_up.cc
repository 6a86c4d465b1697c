#include "planner/job/warm_up.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "planner/step/plan_step.h"
#include "planner/step/sample_steps.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kSteps = 4;

// A quick plan that took this many times as long as the long search's answer in
// all steps loses against a short search too: those of 100 ms were at most 13 %
// longer than those of a minute on the shipped jobs, and on 200 random problems
// at most 21 % longer than the best of 3 s.
constexpr double kQuickLosesFar = 1.25;

using Lessons = std::vector<std::shared_ptr<const CarriedStep>>;

// Makes the lessons tell how the quick plans of their steps did if all lost by
// far. A long search says nothing else of how they do against a short one.
void TellOfQuickPlans(const std::vector<double>& ratios, Lessons* lessons) {
  if (!std::all_of(ratios.begin(), ratios.end(),
                   [](double ratio) { return ratio >= kQuickLosesFar; })) {
    return;
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    CarriedStep lesson = *(*lessons)[i];
    lesson.quick_ratio = ratios[i];
    (*lessons)[i] = std::make_shared<const CarriedStep>(std::move(lesson));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> WarmUp(
    const PreparedJob& job, const BatchMetadata& sample, uint64_t seed,
    const SearchBudget& budget) {
  Lessons lessons;
  std::vector<double> quick_ratios;  // Indexed as `lessons`.
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
    quick_ratios.push_back(std::exchange(lesson.quick_ratio, 0));
    lessons.push_back(std::make_shared<const CarriedStep>(std::move(lesson)));
  }
  TellOfQuickPlans(quick_ratios, &lessons);
  return lessons;
}

}  // namespace pipeloom::planner
