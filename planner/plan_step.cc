#include "planner/plan_step.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/emulate_step.h"
#include "partition/build_stage_graph.h"
#include "partition/loss_shares.h"
#include "planner/flat_graph.h"
#include "planner/known_starts.h"
#include "planner/lower_plan.h"
#include "planner/memory_choices.h"
#include "planner/memory_feasibility.h"
#include "planner/plan_bound.h"
#include "planner/plan_choice.h"
#include "planner/rival_plans.h"
#include "planner/smallest_limit.h"
#include "planner/stage_choices.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// Of the budget, before a robust choice is made with the rest.
constexpr double kNominalShare = 0.7;

// Until this share of it, starts are taken from other strategies.
constexpr double kStartsUntil = 0.2;
// Of these, DIP's: its levels, and some rollouts where there is time.
constexpr double kDipUntil = 0.4;
constexpr int64_t kDipEvaluations = 60;
// And their own plans are looked at.
constexpr double kRivalsUntil = 0.5;

// How a graph is made of the step.
struct Form {
  RecomputeChoice recompute{};
  bool split_backward = false;
};

// Of DIP's part in the starts, where a fused backward does not follow.
SearchBudget DipShare(const SearchBudget& budget, bool is_last) {
  SearchBudget share = budget.Until(kDipUntil);
  share.max_evaluations =
      is_last ? std::clamp<int64_t>(share.max_evaluations, 1, kDipEvaluations)
              : 0;
  return share;
}

// Its plan, and not only its schedule, is as fast as any.
bool IsProven(const Candidate& candidate) {
  return candidate.predicted.step_time() <= candidate.made.found.lower_bound;
}

}  // namespace

double PlanResult::gap_ratio() const {
  if (lower_bound <= kZero) return 0;
  return ToSeconds(predicted.step_time()) / ToSeconds(lower_bound) - 1;
}

double PlanResult::bubble_ratio() const {
  return BubbleRatio(plan.graph, predicted.step_time());
}

double PlanResult::mfu() const { return Mfu(plan, predicted.step_time()); }

std::vector<Bytes> PlanResult::peak_bytes() const {
  std::vector<Bytes> peaks;
  for (const MemoryPeak& peak : MemoryPeaks(predicted)) {
    peaks.push_back(peak.total);
  }
  return peaks;
}

absl::StatusOr<PreparedJob> PrepareJob(const Strategy& strategy,
                                       const emulator::StageCostModel& costs,
                                       const BatchMetadata& sample) {
  PreparedJob job{.strategy = &strategy, .costs = &costs, .partition = {}};
  PIPELOOM_ASSIGN_OR_RETURN(job.partition,
                            strategy.MakePartition(costs, sample));
  PIPELOOM_RETURN_IF_ERROR(ValidatePartition(job.partition, costs.job().model));
  return job;
}

absl::StatusOr<PlanResult> PlanStep(const PreparedJob& prepared,
                                    const PlanInput& whole_input) {
  PreparedJob job = prepared;
  job.costs = &prepared.costs->ForReplica(whole_input.replica);
  const JobSpec& spec = job.costs->job();
  PlanInput input = whole_input;
  if (input.robust.has_value()) {
    input.budget = whole_input.budget.Until(kNominalShare);
  }
  PlanResult result;
  PIPELOOM_ASSIGN_OR_RETURN(
      result.microbatches,
      partition::SplitMicrobatches(spec, *input.packed, input.replica,
                                   job.partition));

  // Every memory choice once with the least of searches, then the best of
  // them with what is left of the budget.
  SearchBudget screening = input.budget;
  screening.max_evaluations = 1;
  const bool only_once = input.budget.max_evaluations <= 1;
  std::optional<Candidate> best;
  std::optional<partition::BuiltGraph> best_graph;
  std::optional<partition::StepMemory> memory;  // Of the best graph.
  absl::Status last_error;
  std::optional<SmallestLimit> step_limit;
  // A strategy that chooses memory itself gets the graph with everything kept.
  const bool own_memory = job.strategy->chooses_memory();
  const bool known_starts =
      dynamic_cast<const StartsFromOthers*>(job.strategy) != nullptr;
  const auto* const setting =
      dynamic_cast<const SetsRecomputation*>(job.strategy);
  std::vector<Form> forms;
  for (RecomputeChoice& choice :
       own_memory           ? std::vector<RecomputeChoice>{RecomputeChoice(
                                  job.partition.stages.size(), false)}
       : setting != nullptr ? setting->RecomputeChoices(spec, job.partition)
                            : MemoryChoices(spec, job.partition)) {
    forms.push_back({std::move(choice), job.strategy->split_backward()});
  }
  for (size_t i = 0; i < forms.size(); ++i) {
    if (best.has_value() && (input.budget.Exhausted(result.evaluations) ||
                             (setting != nullptr &&
                              setting->takes_first_that_fits(job.partition)))) {
      break;
    }
    PIPELOOM_ASSIGN_OR_RETURN(
        partition::BuiltGraph built,
        partition::BuildStageGraph(*job.costs, job.partition,
                                   result.microbatches,
                                   {.split_backward = forms[i].split_backward,
                                    .recompute = forms[i].recompute}));
    std::optional<partition::StepMemory> choices;
    if (own_memory) {
      choices = partition::MakeStepMemory(
          *job.costs, job.partition, result.microbatches, built.pairs,
          StageChoices(*job.costs, job.partition, result.microbatches));
    }
    // What is recomputed holds more until a weight gradient that is apart.
    if (known_starts && forms[i].split_backward &&
        MemoryIsShort(FlatGraph(built.graph))) {
      forms.push_back({forms[i].recompute, /*split_backward=*/false});
    }
    std::optional<Candidate> mine;
    const auto plan = [&](const PreparedJob& with,
                          const SearchBudget& budget) -> absl::Status {
      absl::StatusOr<Candidate> candidate = PlanChoice(
          with, input, built, choices.has_value() ? &*choices : nullptr,
          forms[i].recompute, built.graph.ranks(), budget, &result.evaluations);
      if (!candidate.ok()) {
        if (!absl::IsResourceExhausted(candidate.status())) {
          return candidate.status();
        }
        last_error = candidate.status();
      } else if (!mine.has_value() ||
                 candidate->predicted.finish < mine->predicted.finish) {
        mine = *std::move(candidate);
      }
      return absl::OkStatus();
    };
    PIPELOOM_RETURN_IF_ERROR(plan(job, screening));
    if (known_starts && !(only_once && mine.has_value()) &&
        !(mine.has_value() && IsProven(*mine))) {
      const bool is_last = i + 1 == forms.size();
      const KnownStarts starts(job.strategy->name(),
                               DipShare(input.budget, is_last));
      PreparedJob with_starts = job;
      with_starts.strategy = &starts;
      PIPELOOM_RETURN_IF_ERROR(
          plan(with_starts,
               input.budget.PartUntil(kStartsUntil * static_cast<double>(i + 1),
                                      result.evaluations)));
    }
    if (!mine.has_value()) {
      // Not for searches that only ask whether a partition is worth its while.
      if (choices.has_value() && !only_once) {
        step_limit =
            SmallerOf(step_limit, SmallestLimitOfStep(built.graph, *choices));
      }
      continue;
    }
    if (!best.has_value() || mine->predicted.finish < best->predicted.finish) {
      best = std::move(mine);
      best_graph = std::move(built);
      memory = std::move(choices);
    }
  }
  // What is known to be possible is kept beside what the search goes on from.
  std::optional<RivalPlan> rival;
  if (known_starts && !(only_once && best.has_value()) &&
      !(best.has_value() && IsProven(*best))) {
    PIPELOOM_ASSIGN_OR_RETURN(
        rival,
        BestRivalPlan(job, input, result.microbatches,
                      best.has_value() ? best->predicted.step_time() : kZero,
                      input.budget.Until(kRivalsUntil), &result.evaluations));
  }
  if (!best.has_value() && !rival.has_value()) {
    if (step_limit.has_value()) {
      last_error =
          DescribeInfeasibleStep(last_error, *step_limit, spec.MemoryLimit());
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "step %d, schedule %s: nothing fits the memory limit of %s a GPU%s: %s",
        input.step, std::string(job.strategy->name()),
        FormatBytes(spec.MemoryLimit()),
        spec.Allows(MemoryStrategy::kRecompute)
            ? " even with every activation recomputed"
            : " (training.memory_strategies allows no recomputation)",
        std::string(last_error.message())));
  }
  const bool may_go_on = best.has_value() && !best->made.found.proven_optimal &&
                         !input.budget.Exhausted(result.evaluations);
  if (may_go_on && own_memory) {
    PIPELOOM_RETURN_IF_ERROR(ImproveCandidate(job, input, *best_graph, *memory,
                                              &*best, &result.evaluations));
  } else if (may_go_on) {
    SearchBudget rest = input.budget;
    rest.max_evaluations -= result.evaluations;
    absl::StatusOr<Candidate> searched = PlanChoice(
        job, input, *best_graph, nullptr, best->recompute,
        WithMargin(best_graph->graph, best->limits), rest, &result.evaluations);
    if (searched.ok()) {
      if (searched->predicted.finish <= best->predicted.finish) {
        best = *std::move(searched);
      }
    } else if (!absl::IsResourceExhausted(searched.status())) {
      return searched.status();
    }
  }
  if (rival.has_value() &&
      (!best.has_value() ||
       rival->candidate.predicted.step_time() < best->predicted.step_time())) {
    best = std::move(rival->candidate);
    best_graph = std::move(rival->built);
    memory.reset();
  }
  if (whole_input.robust.has_value()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        result.robust, MakeRobust(job, whole_input, *best_graph,
                                  memory.has_value() ? &*memory : nullptr,
                                  &*best, &result.evaluations));
  }
  // Schedules were made within lowered limits; the step has its own.
  const NamedBound bound =
      PlanBound(best_graph->graph, memory.has_value() ? &*memory : nullptr);
  best->plan.lower_bound = Nanoseconds(bound.time);
  partition::SetLoss(spec.model, *input.packed, result.microbatches,
                     &best->plan);
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(best->plan));
  result.plan = std::move(best->plan);
  result.predicted = std::move(best->predicted);
  result.recompute = std::move(best->recompute);
  if (memory.has_value()) {
    result.memory = partition::PolicyOf(*memory, best->made.selection);
  }
  result.lower_bound = Nanoseconds(bound.time);
  result.bound_source = bound.source;
  result.proven_optimal = result.predicted.step_time() == result.lower_bound;
  return result;
}

}  // namespace pipeloom::planner
