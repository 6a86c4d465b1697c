#include "planner/step/plan_step.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/step/carried_step.h"
#include "planner/step/plan_alone.h"
#include "planner/step/rival_plans.h"
#include "planner/step/sample_steps.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// A quick plan takes a thread for most of the time. None is made if all those
// of the carried steps took at least this many times as long as the steps'
// plans.
constexpr double kQuickLoses = 1.04;

// Returns whether the quick plans of the carried steps were all that long;
// false if none of these steps had one.
bool QuickPlanLoses(const PlanInput& input) {
  bool known = false;
  for (const std::shared_ptr<const CarriedStep>& step : input.carried) {
    if (step == nullptr || step->quick_ratio <= 0) continue;
    if (step->quick_ratio < kQuickLoses) return false;
    known = true;
  }
  return known;
}

// Notes in what the step teaches how its quick plan did.
void NoteQuickPlan(const PlanResult& quick, PlanResult* own) {
  if (own->carried == nullptr) return;
  CarriedStep carried = *own->carried;
  carried.quick_ratio = ToSeconds(quick.predicted.step_time()) /
                        std::max(1e-9, ToSeconds(own->predicted.step_time()));
  own->carried = std::make_shared<const CarriedStep>(std::move(carried));
}

}  // namespace

absl::StatusOr<PreparedJob> PrepareJob(const Strategy& strategy,
                                       const emulator::StageCostModel& costs,
                                       const BatchMetadata& sample,
                                       const std::stop_token& stop) {
  PreparedJob job{.strategy = &strategy, .costs = &costs, .partition = {}};
  PIPELOOM_ASSIGN_OR_RETURN(
      job.partition,
      strategy.MakePartition(costs, FullSample(costs.job(), sample), stop));
  PIPELOOM_RETURN_IF_ERROR(ValidatePartition(job.partition, costs.job().model));
  return job;
}

absl::StatusOr<PlanResult> PlanStep(const PreparedJob& job,
                                    const PlanInput& input) {
  // Searches that only judge a partition make no plans of rivals.
  const auto* const others =
      dynamic_cast<const StartsFromOthers*>(job.strategy);
  if (input.budget.max_evaluations <= 1 || others == nullptr) {
    return PlanAlone(job, input);
  }
  std::optional<PlanResult> quick;
  absl::StatusOr<PlanResult> own = absl::UnknownError("not planned");
  {
    // The search's first parts have one thread only.
    std::jthread other;
    if (input.budget.spent && input.budget.threads > 1 &&
        !QuickPlanLoses(input)) {
      other = std::jthread([&] {
        quick = QuickPlan(others->QuickRivals(job.partition), job, input);
      });
    }
    own = PlanAlone(job, input);
  }
  if (own.ok() && quick.has_value()) NoteQuickPlan(*quick, &*own);
  // The undisturbed time is no measure of a robust choice.
  if (own.ok() && input.robust.has_value()) return own;
  return BestOfRivals(others->Rivals(), job, input, std::move(own),
                      std::move(quick));
}

}  // namespace pipeloom::planner
