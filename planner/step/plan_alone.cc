#include "planner/step/plan_alone.h"

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "partition/batching/loss_shares.h"
#include "partition/batching/shape_buckets.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/bounds/plan_bound.h"
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
#include "planner/step/rule_plans.h"
#include "planner/step/time_shares.h"
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

// A search sees whole backwards if the refined_ratio of all carried steps is at
// least this: memory has no room for weight gradients in gaps. Chosen on 36
// random jobs near their smallest limits, on which this makes steps 3 % shorter
// on the mean where it applies (docs/evaluation/memory_limits.md).
constexpr double kGapsLose = 1.08;

bool CutsMicrobatches(const Partition& partition) {
  const auto& instances = partition.sub_microbatch_instances;
  return std::any_of(instances.begin(), instances.end(),
                     [](int64_t count) { return count > 0; });
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

// Plans one step, once.
class StepPlanner {
 public:
  // If passes are refined after the search, that sees the step as refining will
  // make it, unless it `sees_whole` backwards.
  StepPlanner(const PreparedJob& job, const PlanInput& input, bool sees_whole)
      : whole_budget_(input.budget),
        sees_whole_(sees_whole),
        others_(dynamic_cast<const StartsFromOthers*>(job.strategy)),
        own_memory_(job.strategy->chooses_memory()),
        job_(job),
        input_(input) {
    if (input.robust.has_value()) {
      input_.budget = input.budget.Until(kNominalShare);
    }
  }
  StepPlanner(const StepPlanner&) = delete;
  StepPlanner& operator=(const StepPlanner&) = delete;

  absl::StatusOr<PlanResult> Run() {
    PIPELOOM_RETURN_IF_ERROR(Build());
    PIPELOOM_RETURN_IF_ERROR(own_memory_ ? FindOwnStart() : FindByRules());
    if (Abandoned()) return absl::CancelledError("stopped");
    BeginBound();
    PIPELOOM_RETURN_IF_ERROR(Improve());
    PIPELOOM_RETURN_IF_ERROR(RefineLast());
    if (input_.robust.has_value()) {
      PlanInput whole = input_;
      whole.budget = whole_budget_;
      PIPELOOM_ASSIGN_OR_RETURN(
          result_.robust, MakeRobust(job_, whole, built_, memory_, &*best_,
                                     &result_.evaluations));
    }
    PIPELOOM_RETURN_IF_ERROR(EndBound());
    PIPELOOM_RETURN_IF_ERROR(Finish());
    return std::move(result_);
  }

  // Returns whether Run failed only because the search did not see whole
  // backwards, as far as is known.
  bool needs_whole() const { return needs_whole_; }

 private:
  const JobSpec& spec() const { return job_.costs->job(); }
  bool as_if() const { return step_->as_if(); }
  bool Abandoned() const { return input_.budget.Abandoned(); }
  double Spent() const {
    return input_.budget.spent ? input_.budget.spent() : 0;
  }
  bool IsLarge() const { return built_.pairs.size() > kManyPairs; }

  // Returns an error if only a quick plan is wanted and has no time now.
  absl::Status CheckTime() const {
    if (!input_.only_if_small) return absl::OkStatus();
    const double spent = Spent();
    if (spent >= kQuickUntil) return absl::OkStatus();
    const bool is_cut = CutsMicrobatches(job_.partition);
    const bool in_time = IsLarge() && is_cut ? spent <= kShortBuildOfMany
                         : !is_cut || MicrobatchesAreAlike(built_.graph)
                             ? spent <= kQuickBuildOfClassic
                             : spent <= kQuickBuild;
    if (in_time) return absl::OkStatus();
    // Where memory is tight, it may be twice as short as what the search finds.
    // Before memory is known, it may be.
    const bool may_be_tight = !IsLarge() && spent <= kQuickBuildOfClassic &&
                              (memory_.pairs.empty() || IsTight());
    return may_be_tight
               ? absl::OkStatus()
               : absl::ResourceExhaustedError("no time for a quick plan");
  }

  bool IsTight() const { return MemoryIsTight(built_.graph, memory_); }

  // Makes the step, and the other one that is searched in its place if passes
  // are refined after the search.
  absl::Status Build() {
    // First, as it refuses a replica that the step does not have.
    PIPELOOM_ASSIGN_OR_RETURN(
        result_.microbatches,
        partition::SplitMicrobatches(spec(), *input_.packed, input_.replica,
                                     job_.partition));
    job_.costs = &job_.costs->ForReplica(input_.replica);
    const Microbatches& microbatches = result_.microbatches;
    PIPELOOM_ASSIGN_OR_RETURN(
        built_, partition::BuildStageGraph(
                    *job_.costs, job_.partition, microbatches,
                    {.split_backward = job_.strategy->split_backward()}));
    PIPELOOM_RETURN_IF_ERROR(CheckTime());
    if (own_memory_) {
      memory_ = partition::MakeStepMemory(
          *job_.costs, job_.partition, microbatches, built_.pairs,
          StageChoices(*job_.costs, job_.partition, microbatches));
    } else {
      rules_.emplace(*job_.costs, job_.partition, microbatches, built_.pairs);
      memory_ = rules_->memory();
    }
    refines_ = !input_.robust.has_value() &&
               input_.budget.max_evaluations > 1 &&
               (!job_.strategy->split_backward() || HasPassChoice(memory_) ||
                spec().setup.paired_forwards);
    const bool is_other = others_ != nullptr && own_memory_ && refines_ &&
                          !sees_whole_ && GapsHideWeightGrads(memory_);
    searched_ = is_other ? AsIfPaired(memory_) : memory_;
    if (is_other) {
      PIPELOOM_ASSIGN_OR_RETURN(fewer_,
                                WithoutFusedWeightGrads(built_, searched_));
      searched_.pairs = fewer_.pairs;
    }
    step_.emplace(
        SearchedStep{is_other ? fewer_ : built_, searched_, built_, memory_});
    if (input_.only_if_tight && !IsTight()) {
      return absl::ResourceExhaustedError("memory is not tight");
    }
    return CheckTime();
  }

  // Makes the smallest possible search among the choices of `memory` or, unless
  // null, with those in `fixed`; takes its plan if it is the best so far, and
  // returns whether it is.
  absl::StatusOr<bool> Screen(const partition::StepMemory& memory,
                              const partition::MemorySelection* fixed) {
    if (Abandoned()) return absl::CancelledError("stopped");
    SearchBudget smallest = input_.budget;
    smallest.max_evaluations = 1;
    absl::StatusOr<Candidate> candidate = PlanChoice(
        job_, input_, step_->searched_built, memory, fixed,
        step_->searched_built.graph.ranks(), smallest, &result_.evaluations);
    if (absl::IsResourceExhausted(candidate.status())) {
      last_error_ = candidate.status();
      return false;
    }
    PIPELOOM_RETURN_IF_ERROR(candidate.status());
    return Offer(*std::move(candidate));
  }

  // Takes the candidate if it is the best so far. Returns whether it is.
  bool Offer(Candidate candidate) {
    if (best_.has_value() &&
        candidate.predicted.finish >= best_->predicted.finish) {
      return false;
    }
    best_ = std::move(candidate);
    return true;
  }

  // Returns whether there is time to start both from other strategies and from
  // nothing.
  bool HasTimeForBoth() const {
    if (IsLarge()) return Spent() <= kShortBuildOfMany;
    return Spent() <= (CutsMicrobatches(job_.partition) ? kShortBuild
                                                        : kShortBuildOfWhole);
  }

  absl::Status TakeKnownStart(bool leaves_room) {
    bool only_whole = false;
    PIPELOOM_ASSIGN_OR_RETURN(
        known_, KnownStart(*others_, job_, input_, *step_, leaves_room,
                           &only_whole, &result_.evaluations));
    if (only_whole) {
      needs_whole_ = true;
      return absl::ResourceExhaustedError("backwards have to stay whole");
    }
    if (known_.has_value()) Offer(*known_);
    return absl::OkStatus();
  }

  // Finds a first plan of a strategy that chooses memory.
  absl::Status FindOwnStart() {
    // Searches that only judge a partition skip other strategies' starts.
    const bool searches = input_.budget.max_evaluations > 1;
    const bool has_time = HasTimeForBoth();
    if (others_ != nullptr && searches && !has_time) {
      // A start from nothing may take half the time.
      PIPELOOM_RETURN_IF_ERROR(TakeKnownStart(/*leaves_room=*/true));
      if (!best_.has_value()) {
        PIPELOOM_RETURN_IF_ERROR(Screen(searched_, nullptr).status());
      }
    } else {
      PIPELOOM_RETURN_IF_ERROR(Screen(searched_, nullptr).status());
      if (others_ != nullptr && (searches || !best_.has_value())) {
        PIPELOOM_RETURN_IF_ERROR(TakeKnownStart(!has_time));
      }
    }
    // A plan that fits without copies to the host, which need room of their
    // own, fits with them too.
    if (!best_.has_value() && !searched_.CopySizes().empty()) {
      const absl::Status with_copies = last_error_;
      PIPELOOM_ASSIGN_OR_RETURN(const bool fits,
                                Screen(searched_.WithoutCopies(), nullptr));
      if (fits) {
        best_->made.selection =
            partition::FromWithoutCopies(searched_, best_->made.selection);
      }
      last_error_ = with_copies;
    }
    if (best_.has_value()) return absl::OkStatus();
    if (searches && input_.needs_bound && !as_if()) {
      const SmallestLimit limit = SmallestLimitOfStep(built_.graph, memory_);
      const partition::MemorySelection* const any[] = {nullptr};
      size_t last = 0;
      last_error_ = DescribeInfeasibleStep(
          last_error_, limit.at_least, spec().MemoryLimit(),
          LimitThatWorks(any, Bytes(limit.enough), &last));
    }
    return NothingFits();
  }

  // Returns a limit for which there is a plan with one of the choices in
  // `fixed`, of which `last` becomes the index of the last that worked; null
  // stands for any. `guess`: a limit that may be such a one.
  std::optional<Bytes> LimitThatWorks(
      absl::Span<const partition::MemorySelection* const> fixed, Bytes guess,
      size_t* last) const {
    const partition::BuiltGraph& built = step_->searched_built;
    partition::BuiltGraph limited = built;
    SearchBudget smallest = input_.budget;
    smallest.max_evaluations = 1;
    const auto works = [&](Bytes limit) {
      IdVector<RankId, RankSpec> ranks = built.graph.ranks();
      for (RankSpec& rank : ranks) rank.memory.limit = limit;
      limited.graph = built.graph.WithRanks(ranks);
      const auto has_plan = [&](size_t i) {
        int64_t evaluations = 0;
        return PlanChoice(job_, input_, limited, searched_, fixed[i], ranks,
                          smallest, &evaluations)
            .ok();
      };
      if (has_plan(*last)) return true;
      for (size_t i = 0; i < fixed.size(); ++i) {
        if (i == *last || !has_plan(i)) continue;
        *last = i;
        return true;
      }
      return false;
    };
    return FindLimitThatWorks(spec().MemoryLimit(), guess, works,
                              input_.budget.expired, input_.budget.stop);
  }

  // Finds the best plan by memory rules, for a strategy that chooses none.
  absl::Status FindByRules() {
    const auto may_be_best = [&](const MemoryRule& rule) {
      return !best_.has_value() || rules_->BusiestRank(built_.graph, rule) <
                                       best_->predicted.step_time();
    };
    PIPELOOM_RETURN_IF_ERROR(
        ScreenRules(*rules_, input_.budget, &result_.evaluations, may_be_best,
                    [&](const partition::MemorySelection& selection) {
                      return Screen(searched_, &selection);
                    }));
    if (best_.has_value()) return absl::OkStatus();
    if (input_.budget.max_evaluations > 1 && input_.needs_bound) {
      std::vector<partition::MemorySelection> selections;
      for (const MemoryRule& rule : rules_->SameForAll()) {
        selections.push_back(rules_->SelectionOf(rule));
      }
      std::vector<const partition::MemorySelection*> fixed;
      for (const auto& selection : selections) fixed.push_back(&selection);
      size_t least = fixed.size() - 1;
      const std::optional<Bytes> works =
          LimitThatWorks(fixed, spec().MemoryLimit(), &least);
      // Says what the rule needs that needs the least.
      PIPELOOM_RETURN_IF_ERROR(Screen(searched_, fixed[least]).status());
      if (best_.has_value()) return absl::OkStatus();
      last_error_ = DescribeInfeasibleStep(last_error_, std::nullopt,
                                           spec().MemoryLimit(), works);
    }
    return NothingFits();
  }

  absl::Status NothingFits() {
    // Split backwards may hold more than fused ones.
    needs_whole_ = as_if();
    return absl::ResourceExhaustedError(absl::StrFormat(
        "step %d, strategy %s: nothing fits the memory limit of %s a GPU%s: %s",
        input_.step, std::string(job_.strategy->name()),
        FormatBytes(spec().MemoryLimit()),
        spec().Allows(MemoryStrategy::kRecompute)
            ? " even with every activation recomputed"
            : " (training.memory_strategies allows no recomputation)",
        std::string(last_error_.message())));
  }

  // Computes the bound of a search that stops at it, in a thread of its own if
  // that is late.
  void BeginBound() {
    if (others_ == nullptr || !own_memory_ || !input_.needs_bound ||
        input_.budget.max_evaluations <= 1) {
      return;
    }
    const auto make_bound = [this] {
      return BoundOfStep(spec(), ForBound(built_.graph), memory_,
                         input_.budget);
    };
    if (input_.budget.threads > 1 && Spent() > kBoundApartFrom) {
      bound_apart_ = std::async(std::launch::async, make_bound);
      return;
    }
    bound_ = make_bound();
    SearchResult& found = best_->made.found;
    found.lower_bound = Nanoseconds(bound_->time);
    found.bound_source = bound_->source;
    found.proven_optimal = best_->predicted.step_time() == found.lower_bound;
  }

  // Spends the rest of the budget on a better plan.
  absl::Status Improve() {
    const int64_t evaluations = result_.evaluations;
    if (own_memory_ && others_ != nullptr && input_.budget.spent) {
      // With few evaluations left, other levels of memory are not tried.
      const double spent = input_.budget.spent();
      if (static_cast<double>(evaluations) * (1 - spent) <
          kLevelEvaluations * spent) {
        best_->made.go_on = true;
      }
    }
    const bool may_go_on = !best_->made.found.proven_optimal &&
                           !input_.budget.Exhausted(evaluations);
    if (may_go_on && own_memory_ && refines_ && others_ != nullptr) {
      const absl::StatusOr<double> ratio =
          ImproveAndRefine(job_, input_, *step_, std::move(known_), &*best_,
                           &result_.evaluations);
      needs_whole_ = as_if() && absl::IsResourceExhausted(ratio.status());
      PIPELOOM_ASSIGN_OR_RETURN(refined_ratio_, ratio);
      refined_ = true;
      return absl::OkStatus();
    }
    if (as_if()) {
      absl::StatusOr<Candidate> whole = RefineSearched(
          job_, input_, *step_, *best_, input_.budget.Until(kRefineUntil));
      needs_whole_ = absl::IsResourceExhausted(whole.status());
      PIPELOOM_RETURN_IF_ERROR(whole.status());
      refined_ratio_ = RefinedRatio(*whole, *best_);
      best_ = *std::move(whole);
      refined_ = true;
      return absl::OkStatus();
    }
    if (!may_go_on) return absl::OkStatus();
    PlanInput searching = input_;
    // Its passes are refined after the search, which takes time, too.
    if (refines_ && input_.budget.spent) {
      searching.budget =
          input_.budget.PartUntil(TimeShares(best_->lowering).SearchedEnd(), 0);
    }
    return own_memory_ ? ImproveCandidate(job_, searching, built_, memory_,
                                          &*best_, &result_.evaluations)
                       : ImproveOrder(searching.budget);
  }

  // Searches a better order for the choices of the best plan.
  absl::Status ImproveOrder(const SearchBudget& budget) {
    SearchBudget rest = budget;
    rest.max_evaluations -= result_.evaluations;
    const partition::MemorySelection fixed = best_->made.selection;
    absl::StatusOr<Candidate> again = PlanChoice(
        job_, input_, built_, memory_, &fixed,
        WithMargin(built_.graph, best_->limits), rest, &result_.evaluations);
    if (absl::IsResourceExhausted(again.status())) return absl::OkStatus();
    PIPELOOM_RETURN_IF_ERROR(again.status());
    if (again->predicted.finish <= best_->predicted.finish) {
      best_ = *std::move(again);
    }
    return absl::OkStatus();
  }

  // Refines the passes of a plan that was not refined while it was searched,
  // and the last ones of every plan.
  absl::Status RefineLast() {
    if (!refines_) return absl::OkStatus();
    const SearchBudget until = input_.budget.Until(kRefineUntil);
    if (!refined_) PIPELOOM_RETURN_IF_ERROR(RefineUnrefined(until));
    return FuseLastBackwards(job_, input_, final_built(), final_memory(), until,
                             &*best_);
  }

  absl::Status RefineUnrefined(const SearchBudget& until) {
    PIPELOOM_ASSIGN_OR_RETURN(
        split_, RefineStep(job_, input_, result_.microbatches, built_, memory_,
                           until, &*best_));
    if (!rules_.has_value()) return absl::OkStatus();
    return RefineLeanerRules(job_, input_, result_.microbatches, built_,
                             *rules_, until, &*best_, &split_,
                             &result_.evaluations);
  }

  // The step that the best plan is for.
  const partition::BuiltGraph& final_built() const {
    return split_ ? split_->built : built_;
  }
  const partition::StepMemory& final_memory() const {
    return split_ ? split_->memory : memory_;
  }

  StageGraph ForBound(const StageGraph& graph) const {
    return emulator::WithLeastEpilogues(graph, *built_.update);
  }

  // Makes sure that there is a bound of the step within its own limits:
  // schedules were made within lowered ones.
  absl::Status EndBound() {
    if (bound_apart_.valid()) {
      bound_ = bound_apart_.get();
    } else if (!input_.needs_bound) {
      bound_.emplace();
    } else if (bound_.has_value()) {
      // Known since before the search.
    } else if (own_memory_ || split_.has_value() ||
               !best_->made.pairs.empty() || !best_->made.forms.empty() ||
               spec().setup.paired_forwards) {
      bound_ = BoundOfStep(spec(), ForBound(final_built().graph),
                           final_memory(), {});
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(
          const StageGraph chosen,
          partition::ApplyMemory(built_.graph, memory_, best_->made.selection));
      bound_ = PlanBound(ForBound(chosen), nullptr);
    }
    return absl::OkStatus();
  }

  // Checks the best plan and completes the result.
  absl::Status Finish() {
    ExecutionPlan& plan = best_->plan;
    plan.lower_bound = Nanoseconds(bound_->time);
    partition::SetLoss(spec().model, *input_.packed, result_.microbatches,
                       &plan);
    plan.padded_shapes =
        partition::PaddedShapesOf(spec(), result_.microbatches, plan.graph);
    PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
    // Searches that only judge a partition teach nothing.
    if (input_.budget.max_evaluations > 1) {
      CarriedStep carried = CarryFrom(final_built(), final_memory(), *best_);
      carried.refined_ratio = refined_ratio_;
      result_.carried = std::make_shared<const CarriedStep>(std::move(carried));
    }
    result_.plan = std::move(plan);
    result_.predicted = std::move(best_->predicted);
    result_.memory = partition::PolicyOf(final_memory(), best_->made.selection);
    result_.lower_bound = Nanoseconds(bound_->time);
    result_.bound_source = bound_->source;
    result_.update = built_.update;
    result_.proven_optimal =
        result_.predicted.step_time() == result_.lower_bound;
    return absl::OkStatus();
  }

  const SearchBudget whole_budget_;
  const bool sees_whole_;
  const StartsFromOthers* const others_;  // Null if it starts from nothing.
  const bool own_memory_;
  PreparedJob job_;  // With the costs of the replica.
  PlanInput input_;  // With the budget of the search without disturbances.
  PlanResult result_;

  partition::BuiltGraph built_;
  std::optional<MemoryRules> rules_;  // Set unless own_memory_.
  partition::StepMemory memory_;
  partition::BuiltGraph fewer_;  // Set if as_if().
  partition::StepMemory searched_;
  std::optional<SearchedStep> step_;
  bool refines_ = false;

  std::optional<Candidate> best_;
  std::optional<Candidate> known_;  // Other strategies' start.
  std::optional<SplitStep> split_;  // Set if best_ is for it.
  absl::Status last_error_;
  bool needs_whole_ = false;
  bool refined_ = false;
  double refined_ratio_ = 0;  // CarriedStep::refined_ratio.
  std::optional<NamedBound> bound_;
  std::future<NamedBound> bound_apart_;
};

}  // namespace

absl::StatusOr<PlanResult> PlanAlone(const PreparedJob& job,
                                     const PlanInput& input) {
  if (const auto* const whole =
          dynamic_cast<const PlansWholeSteps*>(job.strategy)) {
    return whole->PlanWholeStep(job, input);
  }
  const double lost = LostByGaps(input.carried);
  if (lost < kGapsLose) {
    StepPlanner planner(job, input, /*sees_whole=*/false);
    absl::StatusOr<PlanResult> result = planner.Run();
    if (!planner.needs_whole()) return result;
  }
  absl::StatusOr<PlanResult> result =
      StepPlanner(job, input, /*sees_whole=*/true).Run();
  // The next step sees whole backwards too.
  if (result.ok()) SetRefinedRatio(std::max(lost, kGapsLose), &result->carried);
  return result;
}

}  // namespace pipeloom::planner
