#include "planner/step/plan_step.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status_macros.h"
#include "planner/core/executor.h"
#include "planner/core/search_budget.h"
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

// Number of workers that search together. Several such teams, each with starts
// and memory choices of its own, find more than one large team: 0.9 % against
// 0.8 with teams of four and 0.4 with one of eight, chosen on seven steps of
// dip-t2v-s, step-video-t2v and qwen2.5-vl-72b (docs/evaluation/planner.md).
constexpr int32_t kTeam = kUsualWorkers;

// Returns into how many teams the budget's workers are divided. Under a
// deadline each has two threads at least: teams that take turns would have less
// time.
int32_t NumTeams(const PreparedJob& job, const PlanInput& input) {
  const auto* const by_seed = dynamic_cast<const SearchesBySeed*>(job.strategy);
  if (by_seed == nullptr || !by_seed->searches()) return 1;
  // A robust choice is not made by the undisturbed time.
  if (input.robust.has_value()) return 1;
  const SearchBudget& budget = input.budget;
  if (budget.workers > kMostWorkers) return 1;  // The search refuses them.
  int32_t teams = budget.workers / kTeam;
  if (budget.expired) teams = std::min(teams, budget.threads / 2);
  return std::max(1, teams);
}

// Plans the step by each of some teams of workers, which share the evaluations
// and threads, and returns the best plan, on ties that of the first team.
absl::StatusOr<PlanResult> PlanByTeams(const PreparedJob& job,
                                       const PlanInput& input) {
  const int32_t teams = NumTeams(job, input);
  if (teams == 1) return PlanAlone(job, input);
  const auto share = [teams](int64_t total, int32_t team) {
    return total / teams + (team < total % teams ? 1 : 0);
  };
  const SearchBudget& budget = input.budget;
  std::vector<PlanInput> inputs(static_cast<size_t>(teams), input);
  Random random(input.seed);
  for (int32_t i = 0; i < teams; ++i) {
    PlanInput& team = inputs[static_cast<size_t>(i)];
    if (i > 0) team.seed = random.Next();
    team.budget.workers = static_cast<int32_t>(share(budget.workers, i));
    team.budget.threads = std::max(1, budget.threads / teams);
    if (budget.max_evaluations < std::numeric_limits<int64_t>::max()) {
      team.budget.max_evaluations =
          std::max<int64_t>(1, share(budget.max_evaluations, i));
    }
  }
  std::vector<absl::StatusOr<PlanResult>> plans(
      static_cast<size_t>(teams), absl::UnknownError("not planned"));
  ParallelFor(budget.threads, teams, [&](int32_t i) {
    const auto team = static_cast<size_t>(i);
    // The machine has fewer cores than threads were asked for, and others took
    // the time.
    if (i > 0 && budget.expired && budget.expired()) return;
    plans[team] = PlanAlone(job, inputs[team]);
  });
  size_t best = 0;
  int64_t evaluations = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (absl::IsCancelled(plans[i].status())) return plans[i];
    if (!plans[i].ok()) continue;
    evaluations += plans[i]->evaluations;
    if (!plans[best].ok() ||
        plans[i]->predicted.step_time() < plans[best]->predicted.step_time()) {
      best = i;
    }
  }
  if (plans[best].ok()) plans[best]->evaluations = evaluations;
  return std::move(plans[best]);
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
  if (input.budget.max_evaluations <= 1) return PlanAlone(job, input);
  if (others == nullptr) return PlanByTeams(job, input);
  std::optional<PlanResult> quick;
  absl::StatusOr<PlanResult> own = absl::UnknownError("not planned");
  {
    // The search's first parts have one thread only.
    std::jthread other;
    if (input.budget.spent && input.budget.threads > 1 &&
        !QuickPlanLoses(input)) {
      other = std::jthread([&] {
        quick = QuickPlan(others->QuickRivals(job.partition),
                          others->TightRivals(job.partition), job, input);
      });
    }
    own = PlanByTeams(job, input);
  }
  if (own.ok() && quick.has_value()) NoteQuickPlan(*quick, &*own);
  // The undisturbed time is no measure of a robust choice.
  if (own.ok() && input.robust.has_value()) return own;
  return BestOfRivals(others->Rivals(), job, input, std::move(own),
                      std::move(quick));
}

}  // namespace pipeloom::planner
