#include "planner/step/rival_plans.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/lower_bound.h"
#include "planner/memory/stage_choices.h"
#include "planner/step/carried_step.h"
#include "planner/step/plan_alone.h"
#include "planner/step/refine_passes.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// The most evaluations of a search by another strategy, and of one that is not
// limited by time: the whole budget where that is cheap, which is up to this
// many evaluations times tasks.
constexpr int64_t kSearchEvaluations = 60;
constexpr int64_t kSearchWork = 300'000;

// Under a deadline, the share of the time until which a rival is begun: some
// take longer than what is left when the search has ended.
constexpr double kBeginUntil = 0.6;

// Share of the time for a quick plan, and until which another one is begun.
constexpr double kQuickUntil = 0.8;
constexpr double kNextQuickUntil = 0.4;
// The most tasks of a step for which there is usually time for another one
// (internvl3-38b: 1,092 tasks; none for 3,360 of llama3-70b).
constexpr int32_t kNextQuickTasks = 2000;

// Returns the most evaluations that a rival may make.
int64_t MaxEvaluations(const SearchBudget& budget,
                       const absl::StatusOr<PlanResult>& own) {
  int64_t most = kSearchEvaluations;
  if (own.ok() && !budget.spent) {
    const int64_t tasks = std::max(1, own->plan.graph.num_tasks());
    most = std::max(most, kSearchWork / tasks);
  }
  return std::min(budget.max_evaluations, most);
}

// Returns the bound of the step over every memory choice that strategies which
// choose memory have.
absl::StatusOr<NamedBound> BoundOfRivals(const PreparedJob& prepared,
                                         const PlanInput& input,
                                         const Microbatches& microbatches) {
  const emulator::StageCostModel& costs =
      prepared.costs->ForReplica(input.replica);
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(costs, prepared.partition, microbatches,
                                 {.split_backward = true}));
  const partition::StepMemory memory = partition::MakeStepMemory(
      costs, prepared.partition, microbatches, built.pairs,
      StageChoices(costs, prepared.partition, microbatches));
  return BoundOfStep(costs.job(),
                     emulator::WithLeastEpilogues(built.graph, *built.update),
                     memory, {});
}

}  // namespace

std::optional<PlanResult> QuickPlan(
    const std::vector<std::unique_ptr<Strategy>>& rivals,
    const std::vector<std::unique_ptr<Strategy>>& tight_rivals,
    const PreparedJob& job, const PlanInput& input) {
  PlanInput quick = input;
  quick.robust.reset();
  quick.needs_bound = false;
  std::optional<PlanResult> best;
  const auto try_all = [&](const std::vector<std::unique_ptr<Strategy>>& some) {
    for (const std::unique_ptr<Strategy>& rival : some) {
      const bool is_next = best.has_value();
      if (is_next && input.budget.spent &&
          input.budget.spent() > kNextQuickUntil) {
        return;
      }
      quick.only_if_small = !is_next;
      quick.budget = input.budget.PartUntil(kQuickUntil, 0);
      PreparedJob with = job;
      with.strategy = rival.get();
      absl::StatusOr<PlanResult> plan = PlanAlone(with, quick);
      if (!plan.ok()) continue;
      if (!is_next ||
          plan->predicted.step_time() < best->predicted.step_time()) {
        best = *std::move(plan);
      }
    }
  };
  try_all(rivals);
  quick.only_if_tight = true;
  try_all(tight_rivals);
  return best;
}

absl::StatusOr<Duration> QuickTime(const PreparedJob& job,
                                   const PlanInput& input) {
  absl::StatusOr<Duration> time = absl::NotFoundError("no quick plan");
  const auto* const others =
      dynamic_cast<const StartsFromOthers*>(job.strategy);
  if (others == nullptr) return time;
  PlanInput without_bound = input;
  without_bound.needs_bound = false;
  for (const std::unique_ptr<Strategy>& rival :
       others->QuickRivals(job.partition)) {
    PreparedJob with_rival = job;
    with_rival.strategy = rival.get();
    const absl::StatusOr<PlanResult> quick =
        PlanAlone(with_rival, without_bound);
    if (!quick.ok()) continue;
    const Duration quick_time = quick->predicted.step_time();
    if (!time.ok() || quick_time < *time) time = quick_time;
    if (quick->plan.graph.num_tasks() > kNextQuickTasks) break;
  }
  return time;
}

absl::StatusOr<Duration> JudgedTime(const PreparedJob& job,
                                    const PlanInput& input) {
  PlanInput judged = input;
  // Only a search stops at a bound.
  judged.needs_bound = input.budget.max_evaluations > 1;
  const absl::StatusOr<PlanResult> own = PlanAlone(job, judged);
  const absl::StatusOr<Duration> quick = QuickTime(job, input);
  if (!own.ok()) return quick.ok() ? quick : own.status();
  const Duration time = own->predicted.step_time();
  return quick.ok() ? std::min(time, *quick) : time;
}

absl::StatusOr<PlanResult> BestOfRivals(
    const std::vector<std::unique_ptr<Strategy>>& rivals,
    const PreparedJob& job, const PlanInput& input,
    absl::StatusOr<PlanResult> own, std::optional<PlanResult> quick) {
  if (!own.ok() && !absl::IsResourceExhausted(own.status())) return own;
  PlanInput once = input;
  once.robust.reset();
  once.needs_bound = false;
  once.budget.max_evaluations = MaxEvaluations(input.budget, own);
  std::optional<PlanResult> best;
  int64_t evaluations = own.ok() ? own->evaluations : 0;
  if (quick.has_value()) {
    evaluations += quick->evaluations;
    if (!own.ok() ||
        quick->predicted.step_time() < own->predicted.step_time()) {
      best = std::move(quick);
    }
  }
  for (const std::unique_ptr<Strategy>& rival : rivals) {
    if (input.budget.stop.stop_requested()) break;
    if (own.ok() && input.budget.spent && input.budget.spent() > kBeginUntil) {
      break;
    }
    PreparedJob with = job;
    with.strategy = rival.get();
    absl::StatusOr<PlanResult> plan = PlanAlone(with, once);
    // The strategy cannot plan this partition, or nothing fits.
    if (!plan.ok()) continue;
    evaluations += plan->evaluations;
    const Duration time = plan->predicted.step_time();
    if (own.ok() && time >= own->predicted.step_time()) continue;
    if (best.has_value() && time >= best->predicted.step_time()) continue;
    best = *std::move(plan);
  }
  if (!best.has_value()) {
    if (own.ok()) own->evaluations = evaluations;
    return own;
  }
  // Rivals have whole backwards, and no ratio.
  if (own.ok() && own->carried != nullptr) {
    SetRefinedRatio(own->carried->refined_ratio, &best->carried);
  }
  NamedBound bound;
  if (own.ok()) {
    bound = {own->lower_bound.count(), own->bound_source};
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(bound,
                              BoundOfRivals(job, input, best->microbatches));
  }
  best->plan.schedule = std::string(job.strategy->name());
  best->lower_bound = Nanoseconds(bound.time);
  best->plan.lower_bound = best->lower_bound;
  best->bound_source = bound.source;
  best->proven_optimal = best->predicted.step_time() == best->lower_bound;
  best->evaluations = evaluations;
  return *std::move(best);
}

}  // namespace pipeloom::planner
