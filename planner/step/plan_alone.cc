#include "planner/step/plan_alone.h"

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/step/emulate_step.h"
#include "partition/batching/loss_shares.h"
#include "partition/batching/shape_buckets.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/plan_bound.h"
#include "planner/lower/lower_plan.h"
#include "planner/memory/memory_levels.h"
#include "planner/memory/memory_rules.h"
#include "planner/memory/smallest_limit.h"
#include "planner/memory/stage_choices.h"
#include "planner/orders/classic_orders.h"
#include "planner/passes/drop_fused.h"
#include "planner/passes/pass_forms.h"
#include "planner/step/carried_step.h"
#include "planner/step/improve_step.h"
#include "planner/step/plan_choice.h"
#include "planner/step/refine_passes.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// Share of the budget for the search without disturbances; the rest goes to a
// robust choice.
constexpr double kNominalShare = 0.7;

// Under a deadline, the largest share of the time spent on building the step at
// which it is started both from other strategies and from nothing. Larger steps
// have time for one start, and other strategies' is the better one. Chosen, as
// the other constants here, on eight steps of the jobs of
// scripts/measure_jobs.py in 100 ms, with 30 random jobs in view.
constexpr double kShortBuild = 0.012;
// The same for steps of more than so many stage pairs, whose start from nothing
// takes 20 times as long as their build (dip-vlm-l: half of 100 ms), and the
// same for a quick plan of one whose microbatches are cut.
constexpr int32_t kManyPairs = 1300;
constexpr double kShortBuildOfMany = 0.005;
// The same for steps of whole microbatches, for which a start from nothing is
// often the best: dip-vlm-s with 47 microbatches of text on 16 ranks begins 4 %
// shorter with it and ends 6 % shorter.
constexpr double kShortBuildOfWhole = 0.04;

// The largest share at which a quick plan is made during the search
// (PlanInput::only_if_small).
constexpr double kQuickBuild = 0.035;
// The same for whole or equal microbatches, whose quick plan is a classic
// order, takes little time and may well be the best (internvl3-38b on 16 ranks,
// text; nextstep-1 on 16 ranks, 45 microbatches).
constexpr double kQuickBuildOfClassic = 0.25;
// From this share on it is made for large steps too.
constexpr double kQuickUntil = 0.5;

// Evaluations that there must be time for so that levels of memory are tried
// again after the first start.
constexpr double kLevelEvaluations = 600;

// Under a deadline, the share of the time from which a bound is computed in a
// thread of its own, while the search goes on without it.
constexpr double kBoundApartFrom = 0.4;

// Share of the budget for trying memory rules.
constexpr double kRulesShare = 0.5;

// A search sees whole backwards if the refined_ratio of all carried steps is at
// least this: memory has no room for weight gradients in gaps. Chosen on 36
// random jobs near their smallest limits, on which this makes steps 3 % shorter
// on the mean where it applies (docs/evaluation/memory_limits.md).
constexpr double kGapsLose = 1.08;

// How many leaner rules are tried for passes that are put off, and the least
// share of its time that a step may then take.
constexpr int kLeanerRules = 4;
constexpr double kMostPairsSave = 0.85;

// Tries rules until its part of the budget ends, and at least until one fits:
// first rules alike for all modules, then cheaper settings for one module after
// the other, of which the first that improves on the best is taken.
// `screen(selection)` tells whether the selection fits and is the best so far;
// `may_be_best(rule)` whether that is possible.
template <typename MayBeBest, typename Screen>
absl::Status ScreenRules(const MemoryRules& rules, const SearchBudget& whole,
                         const int64_t* evaluations,
                         const MayBeBest& may_be_best, const Screen& screen) {
  const SearchBudget budget = whole.Until(kRulesShare);
  std::optional<MemoryRule> best;
  const auto done = [&] {
    return best.has_value() && budget.Exhausted(*evaluations);
  };
  const auto try_rule = [&](const MemoryRule& rule) -> absl::StatusOr<bool> {
    if (!may_be_best(rule)) return false;
    const partition::MemorySelection selection = rules.SelectionOf(rule);
    PIPELOOM_ASSIGN_OR_RETURN(const bool better, screen(&selection));
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

bool CutsMicrobatches(const Partition& partition) {
  const auto& instances = partition.sub_microbatch_instances;
  return std::any_of(instances.begin(), instances.end(),
                     [](int64_t count) { return count > 0; });
}

// Finds better forms of passes for the order of `best`, of a strategy that does
// not start from others. A step of fused backwards is first turned into one
// that has both forms; that is returned if `best` now belongs to it.
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
  if (!answer.ok() || !(HasFormChoice(answer->step.memory) ||
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

// Does the same for rules that leave more memory free than that of `best`, as
// weight gradients that are put off need some. `split` belongs to `best`.
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

// Returns the least refined_ratio of the carried steps that have one; 0 if none
// has.
double LostByGaps(
    const std::vector<std::shared_ptr<const CarriedStep>>& carried) {
  double least = 0;
  for (const std::shared_ptr<const CarriedStep>& step : carried) {
    if (step == nullptr || step->refined_ratio <= 0) continue;
    least =
        least > 0 ? std::min(least, step->refined_ratio) : step->refined_ratio;
  }
  return least;
}

// Plans the step. If its passes are refined after the search, that sees the
// step as refining will make it, unless `sees_whole` backwards; sets `retry` if
// the step does not fit only because of that.
absl::StatusOr<PlanResult> PlanOnce(const PreparedJob& prepared,
                                    const PlanInput& whole_input,
                                    bool sees_whole, bool* retry) {
  PlanResult result;
  // First, as it refuses a replica that the step does not have.
  PIPELOOM_ASSIGN_OR_RETURN(
      result.microbatches,
      partition::SplitMicrobatches(prepared.costs->job(), *whole_input.packed,
                                   whole_input.replica, prepared.partition));
  PreparedJob job = prepared;
  job.costs = &prepared.costs->ForReplica(whole_input.replica);
  const JobSpec& spec = job.costs->job();
  PlanInput input = whole_input;
  if (input.robust.has_value()) {
    input.budget = whole_input.budget.Until(kNominalShare);
  }

  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(
          *job.costs, job.partition, result.microbatches,
          {.split_backward = job.strategy->split_backward()}));
  const bool is_large = built.pairs.size() > kManyPairs;
  const bool is_cut = CutsMicrobatches(job.partition);
  const double most_quick =
      is_large && is_cut ? kShortBuildOfMany
      : input.only_if_small && (!is_cut || MicrobatchesAreAlike(built.graph))
          ? kQuickBuildOfClassic
          : kQuickBuild;
  const auto has_no_time = [&] {
    return input.only_if_small && input.budget.spent &&
           input.budget.spent() > most_quick &&
           input.budget.spent() < kQuickUntil;
  };
  const auto no_time = [] {
    return absl::ResourceExhaustedError("no time for a quick plan");
  };
  if (has_no_time()) return no_time();
  const bool own_memory = job.strategy->chooses_memory();
  const auto* const others =
      dynamic_cast<const StartsFromOthers*>(job.strategy);
  bool refined = false;
  double refined_ratio = 0;
  std::optional<MemoryRules> rules;
  if (!own_memory) {
    rules.emplace(*job.costs, job.partition, result.microbatches, built.pairs);
  }
  const partition::StepMemory memory =
      own_memory
          ? partition::MakeStepMemory(
                *job.costs, job.partition, result.microbatches, built.pairs,
                StageChoices(*job.costs, job.partition, result.microbatches))
          : rules->memory();
  const bool refines = !whole_input.robust.has_value() &&
                       input.budget.max_evaluations > 1 &&
                       (!job.strategy->split_backward() ||
                        HasFormChoice(memory) || spec.setup.paired_forwards);
  const bool as_if = others != nullptr && own_memory && refines &&
                     !sees_whole && HasFormChoice(memory) &&
                     GapsHideWeightGrads(memory);
  partition::BuiltGraph fewer;
  partition::StepMemory searched = as_if ? AsIfPaired(memory) : memory;
  if (as_if) {
    PIPELOOM_ASSIGN_OR_RETURN(fewer, WithoutFusedWeightGrads(built, searched));
    searched.pairs = fewer.pairs;
  }
  const partition::BuiltGraph& searched_built = as_if ? fewer : built;
  const SearchedStep step{searched_built, searched, built, memory};
  if (has_no_time()) return no_time();
  const auto abandoned = [&] { return input.budget.Abandoned(); };
  if (abandoned()) return absl::CancelledError("stopped");
  // The smallest possible search.
  SearchBudget screening = input.budget;
  screening.max_evaluations = 1;
  std::optional<Candidate> best;
  std::optional<Candidate> known;
  std::optional<NamedBound> bound;
  std::future<NamedBound> bound_apart;
  absl::Status last_error;
  // Returns true if the selection fits and is better.
  const auto screen =
      [&](const partition::MemorySelection* fixed) -> absl::StatusOr<bool> {
    if (abandoned()) return absl::CancelledError("stopped");
    absl::StatusOr<Candidate> candidate = PlanChoice(
        job, input, searched_built, searched, fixed,
        searched_built.graph.ranks(), screening, &result.evaluations);
    if (!candidate.ok()) {
      if (!absl::IsResourceExhausted(candidate.status())) {
        return candidate.status();
      }
      last_error = candidate.status();
      return false;
    }
    if (best.has_value() &&
        candidate->predicted.finish >= best->predicted.finish) {
      return false;
    }
    best = *std::move(candidate);
    return true;
  };
  if (own_memory) {
    // Searches that only judge a partition skip other strategies' starts.
    const bool searches = input.budget.max_evaluations > 1;
    const auto most_for_both = [&] {
      if (is_large) return kShortBuildOfMany;
      return is_cut ? kShortBuild : kShortBuildOfWhole;
    };
    const bool has_time_for_both =
        !input.budget.spent || input.budget.spent() <= most_for_both();
    bool only_whole = false;
    const auto start_from_known = [&]() -> absl::Status {
      PIPELOOM_ASSIGN_OR_RETURN(
          known, KnownStart(*others, job, input, step, !has_time_for_both,
                            &only_whole, &result.evaluations));
      if (only_whole) {
        *retry = true;
        return absl::ResourceExhaustedError("backwards have to stay whole");
      }
      if (known.has_value() &&
          (!best.has_value() ||
           known->predicted.finish < best->predicted.finish)) {
        best = known;
      }
      return absl::OkStatus();
    };
    // A start from nothing may take half the time.
    if (others != nullptr && searches && !has_time_for_both) {
      PIPELOOM_RETURN_IF_ERROR(start_from_known());
      if (!best.has_value()) {
        PIPELOOM_RETURN_IF_ERROR(screen(nullptr).status());
      }
    } else {
      PIPELOOM_RETURN_IF_ERROR(screen(nullptr).status());
      if (others != nullptr && (searches || !best.has_value())) {
        PIPELOOM_RETURN_IF_ERROR(start_from_known());
      }
    }
    // A plan that fits without copies to the host, which need room of their
    // own, fits with them too.
    if (!best.has_value() && !searched.CopySizes().empty()) {
      const partition::StepMemory uncopied = searched.WithoutCopies();
      absl::StatusOr<Candidate> candidate = PlanChoice(
          job, input, searched_built, uncopied, nullptr,
          searched_built.graph.ranks(), screening, &result.evaluations);
      if (candidate.ok()) {
        candidate->made.selection =
            partition::FromWithoutCopies(searched, candidate->made.selection);
        best = *std::move(candidate);
      } else if (!absl::IsResourceExhausted(candidate.status())) {
        return candidate.status();
      }
    }
    if (!best.has_value() && searches) {
      last_error = DescribeInfeasibleStep(
          last_error, SmallestLimitOfStep(built.graph, memory),
          spec.MemoryLimit());
    }
  } else {
    const auto may_be_best = [&](const MemoryRule& rule) {
      return !best.has_value() || rules->BusiestRank(built.graph, rule) <
                                      best->predicted.step_time();
    };
    PIPELOOM_RETURN_IF_ERROR(ScreenRules(
        *rules, input.budget, &result.evaluations, may_be_best, screen));
  }
  if (!best.has_value()) {
    // Split backwards may hold more than fused ones.
    *retry = as_if;
    return absl::ResourceExhaustedError(absl::StrFormat(
        "step %d, schedule %s: nothing fits the memory limit of %s a GPU%s: %s",
        input.step, std::string(job.strategy->name()),
        FormatBytes(spec.MemoryLimit()),
        spec.Allows(MemoryStrategy::kRecompute)
            ? " even with every activation recomputed"
            : " (training.memory_strategies allows no recomputation)",
        std::string(last_error.message())));
  }
  if (abandoned()) return absl::CancelledError("stopped");
  if (others != nullptr && own_memory && input.needs_bound &&
      input.budget.max_evaluations > 1) {
    const auto make_bound = [&] {
      return BoundOfStep(spec, built.graph, memory, input.budget);
    };
    if (input.budget.threads > 1 && input.budget.spent &&
        input.budget.spent() > kBoundApartFrom) {
      bound_apart = std::async(std::launch::async, make_bound);
    } else {
      bound = make_bound();
    }
  }
  if (bound.has_value()) {
    SearchResult& found = best->made.found;
    found.lower_bound = Nanoseconds(bound->time);
    found.bound_source = bound->source;
    found.proven_optimal = best->predicted.step_time() == found.lower_bound;
  }
  if (own_memory && others != nullptr && input.budget.spent) {
    // With few evaluations left, other levels of memory are not tried.
    const double spent = input.budget.spent();
    if (static_cast<double>(result.evaluations) * (1 - spent) <
        kLevelEvaluations * spent) {
      best->made.go_on = true;
    }
  }
  const bool may_go_on = !best->made.found.proven_optimal &&
                         !input.budget.Exhausted(result.evaluations);
  if (may_go_on && own_memory && refines && others != nullptr) {
    const absl::StatusOr<double> ratio = ImproveAndRefine(
        job, input, step, std::move(known), &*best, &result.evaluations);
    *retry = as_if && absl::IsResourceExhausted(ratio.status());
    PIPELOOM_ASSIGN_OR_RETURN(refined_ratio, ratio);
    refined = true;
  } else if (as_if) {
    absl::StatusOr<Candidate> whole = RefineSearched(
        job, input, step, *best, input.budget.Until(kRefineUntil));
    *retry = absl::IsResourceExhausted(whole.status());
    PIPELOOM_RETURN_IF_ERROR(whole.status());
    refined_ratio = RefinedRatio(*whole, *best);
    best = *std::move(whole);
    refined = true;
  } else if (may_go_on && own_memory) {
    PIPELOOM_RETURN_IF_ERROR(ImproveCandidate(job, input, built, memory, &*best,
                                              &result.evaluations));
  } else if (may_go_on) {
    SearchBudget rest = input.budget;
    rest.max_evaluations -= result.evaluations;
    const partition::MemorySelection fixed = best->made.selection;
    absl::StatusOr<Candidate> again = PlanChoice(
        job, input, built, memory, &fixed,
        WithMargin(built.graph, best->limits), rest, &result.evaluations);
    if (again.ok()) {
      if (again->predicted.finish <= best->predicted.finish) {
        best = *std::move(again);
      }
    } else if (!absl::IsResourceExhausted(again.status())) {
      return again.status();
    }
  }
  std::optional<SplitStep> split;
  if (refines && !refined) {
    const SearchBudget until = input.budget.Until(kRefineUntil);
    PIPELOOM_ASSIGN_OR_RETURN(split, RefineStep(job, input, result.microbatches,
                                                built, memory, until, &*best));
    if (rules.has_value()) {
      PIPELOOM_RETURN_IF_ERROR(
          RefineLeanerRules(job, input, result.microbatches, built, *rules,
                            until, &*best, &split, &result.evaluations));
    }
  }
  const partition::BuiltGraph& final_built = split ? split->built : built;
  const partition::StepMemory& final_memory = split ? split->memory : memory;
  if (whole_input.robust.has_value()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        result.robust, MakeRobust(job, whole_input, built, memory, &*best,
                                  &result.evaluations));
  }
  // Schedules were made within lowered limits; the bound is for the step's own.
  if (bound_apart.valid()) {
    bound = bound_apart.get();
  } else if (!input.needs_bound) {
    bound.emplace();
  } else if (bound.has_value()) {
    // Known since before the search.
  } else if (own_memory || split.has_value() || !best->made.pairs.empty() ||
             !best->made.forms.empty() || spec.setup.paired_forwards) {
    bound = BoundOfStep(spec, final_built.graph, final_memory, {});
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph chosen,
        partition::ApplyMemory(built.graph, memory, best->made.selection));
    bound = PlanBound(chosen, nullptr);
  }
  best->plan.lower_bound = Nanoseconds(bound->time);
  partition::SetLoss(spec.model, *input.packed, result.microbatches,
                     &best->plan);
  best->plan.padded_shapes =
      partition::PaddedShapesOf(spec, result.microbatches, best->plan.graph);
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(best->plan));
  // Searches that only judge a partition teach nothing.
  if (input.budget.max_evaluations > 1) {
    CarriedStep carried = CarryFrom(final_built, final_memory, *best);
    carried.refined_ratio = refined_ratio;
    result.carried = std::make_shared<const CarriedStep>(std::move(carried));
  }
  result.plan = std::move(best->plan);
  result.predicted = std::move(best->predicted);
  result.memory = partition::PolicyOf(final_memory, best->made.selection);
  result.lower_bound = Nanoseconds(bound->time);
  result.bound_source = bound->source;
  result.proven_optimal = result.predicted.step_time() == result.lower_bound;
  return result;
}

}  // namespace

absl::StatusOr<PlanResult> PlanAlone(const PreparedJob& job,
                                     const PlanInput& input) {
  if (const auto* const whole =
          dynamic_cast<const PlansWholeSteps*>(job.strategy)) {
    return whole->PlanWholeStep(job, input);
  }
  const double lost = LostByGaps(input.carried);
  bool retry = lost >= kGapsLose;
  absl::StatusOr<PlanResult> result = absl::UnknownError("not planned");
  if (!retry) result = PlanOnce(job, input, /*sees_whole=*/false, &retry);
  if (!retry) return result;
  result = PlanOnce(job, input, /*sees_whole=*/true, &retry);
  // The next step sees whole backwards too.
  if (result.ok()) SetRefinedRatio(std::max(lost, kGapsLose), &result->carried);
  return result;
}

}  // namespace pipeloom::planner
