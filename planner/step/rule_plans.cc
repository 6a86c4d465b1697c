#include "planner/step/rule_plans.h"

#include <utility>

#include "base/status_macros.h"
#include "planner/passes/pass_forms.h"
#include "planner/strategy.h"

namespace pipeloom::planner {
namespace {

// Share of the budget for trying memory rules.
constexpr double kRulesShare = 0.5;

// How many leaner rules are tried for passes that are put off, and the least
// share of its time that a step may then take.
constexpr int kLeanerRules = 4;
constexpr double kMostPairsSave = 0.85;

}  // namespace

absl::Status ScreenRules(
    const MemoryRules& rules, const SearchBudget& whole,
    const int64_t* evaluations,
    absl::FunctionRef<bool(const MemoryRule&)> may_be_best,
    absl::FunctionRef<absl::StatusOr<bool>(const partition::MemorySelection&)>
        screen) {
  const SearchBudget budget = whole.Until(kRulesShare);
  std::optional<MemoryRule> best;
  const auto done = [&] {
    return best.has_value() && budget.Exhausted(*evaluations);
  };
  const auto try_rule = [&](const MemoryRule& rule) -> absl::StatusOr<bool> {
    if (!may_be_best(rule)) return false;
    const partition::MemorySelection selection = rules.SelectionOf(rule);
    PIPELOOM_ASSIGN_OR_RETURN(const bool better, screen(selection));
    if (better) best = rule;
    return better;
  };
  for (const MemoryRule& rule : rules.SameForAll()) {
    if (done()) return absl::OkStatus();
    PIPELOOM_RETURN_IF_ERROR(try_rule(rule).status());
  }
  if (!best.has_value()) return absl::OkStatus();
  const MemoryRule start = *best;
  for (const ModuleId m : start.ids()) {
    for (const MemoryRule& rule : rules.Cheaper(*best, m)) {
      if (done()) return absl::OkStatus();
      PIPELOOM_ASSIGN_OR_RETURN(const bool better, try_rule(rule));
      if (better) break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SplitStep>> RefineStep(
    const PreparedJob& job, const PlanInput& input,
    const Microbatches& microbatches, const partition::BuiltGraph& built,
    const partition::StepMemory& memory, const SearchBudget& budget,
    Candidate* best) {
  if (job.strategy->split_backward()) {
    PIPELOOM_RETURN_IF_ERROR(
        RefinePasses(job, input, built, memory, budget, best));
    return std::nullopt;
  }
  absl::StatusOr<SplitAnswer> answer =
      ToSplit(job, microbatches, built, memory, best->made);
  if (!answer.ok() || !(HasPassChoice(answer->step.memory) ||
                        SplitHandsOnSooner(answer->step.memory) ||
                        job.costs->job().setup.paired_forwards)) {
    return std::nullopt;
  }
  Candidate as_split = *best;
  as_split.made = std::move(answer->made);
  PIPELOOM_RETURN_IF_ERROR(RefinePasses(
      job, input, answer->step.built, answer->step.memory, budget, &as_split));
  if (as_split.predicted.finish >= best->predicted.finish) return std::nullopt;
  *best = std::move(as_split);
  return std::move(answer->step);
}

absl::Status RefineLeanerRules(const PreparedJob& job, const PlanInput& input,
                               const Microbatches& microbatches,
                               const partition::BuiltGraph& built,
                               const MemoryRules& rules,
                               const SearchBudget& budget, Candidate* best,
                               std::optional<SplitStep>* split,
                               int64_t* evaluations) {
  SearchBudget once = budget;
  once.max_evaluations = 1;
  int tried = 0;
  for (const MemoryRule& rule : rules.SameForAll()) {
    if (budget.Exhausted(*evaluations) || tried == kLeanerRules) break;
    const partition::MemorySelection selection = rules.SelectionOf(rule);
    if (selection == best->made.selection ||
        ToSeconds(rules.BusiestRank(built.graph, rule)) * kMostPairsSave >=
            ToSeconds(best->predicted.step_time())) {
      continue;
    }
    absl::StatusOr<Candidate> candidate =
        PlanChoice(job, input, built, rules.memory(), &selection,
                   built.graph.ranks(), once, evaluations);
    if (!candidate.ok()) {
      if (absl::IsResourceExhausted(candidate.status())) continue;
      return candidate.status();
    }
    ++tried;
    PIPELOOM_ASSIGN_OR_RETURN(std::optional<SplitStep> own,
                              RefineStep(job, input, microbatches, built,
                                         rules.memory(), budget, &*candidate));
    if (candidate->predicted.finish < best->predicted.finish) {
      *best = *std::move(candidate);
      *split = std::move(own);
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::planner
