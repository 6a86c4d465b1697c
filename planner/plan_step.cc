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
#include "planner/lower_plan.h"
#include "planner/memory_choices.h"
#include "planner/plan_bound.h"
#include "planner/plan_choice.h"
#include "planner/smallest_limit.h"
#include "planner/stage_choices.h"

namespace pipeloom::planner {
namespace {

// Of the budget, before a robust choice is made with the rest.
constexpr double kNominalShare = 0.7;

}  // namespace

double PlanResult::gap_ratio() const {
  if (lower_bound <= kZero) return 0;
  return ToSeconds(predicted.step_time()) / ToSeconds(lower_bound) - 1;
}

double PlanResult::bubble_ratio() const {
  return BubbleRatio(plan.graph, predicted.step_time());
}

double PlanResult::epilogue_ratio() const {
  return EpilogueRatio(plan.graph, predicted.step_time());
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
  std::optional<Candidate> best;
  std::optional<partition::BuiltGraph> best_graph;
  absl::Status last_error;
  // A strategy that chooses memory itself gets the graph with everything kept.
  const bool own_memory = job.strategy->chooses_memory();
  std::optional<partition::StepMemory> memory;
  std::vector<RecomputeChoice> choices =
      own_memory ? std::vector<RecomputeChoice>{RecomputeChoice(
                       job.partition.stages.size(), false)}
                 : MemoryChoices(spec, job.partition);
  for (RecomputeChoice& choice : choices) {
    if (best.has_value() && input.budget.Exhausted(result.evaluations)) break;
    PIPELOOM_ASSIGN_OR_RETURN(
        partition::BuiltGraph built,
        partition::BuildStageGraph(
            *job.costs, job.partition, result.microbatches,
            {.split_backward = job.strategy->split_backward(),
             .recompute = choice}));
    if (own_memory) {
      memory = partition::MakeStepMemory(
          *job.costs, job.partition, result.microbatches, built.pairs,
          StageChoices(*job.costs, job.partition, result.microbatches));
    }
    absl::StatusOr<Candidate> candidate = PlanChoice(
        job, input, built, memory.has_value() ? &*memory : nullptr,
        std::move(choice), built.graph.ranks(), screening, &result.evaluations);
    if (!candidate.ok()) {
      if (!absl::IsResourceExhausted(candidate.status())) {
        return candidate.status();
      }
      last_error = candidate.status();
      // Not for searches that only ask whether a partition is worth its while.
      if (memory.has_value() && input.budget.max_evaluations > 1) {
        last_error = DescribeInfeasibleStep(last_error, built.graph, *memory);
      }
      continue;
    }
    if (!best.has_value() ||
        candidate->predicted.finish < best->predicted.finish) {
      best = *std::move(candidate);
      best_graph = std::move(built);
    }
  }
  if (!best.has_value()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "step %d, schedule %s: nothing fits the memory limit of %s a GPU%s: %s",
        input.step, std::string(job.strategy->name()),
        FormatBytes(spec.MemoryLimit()),
        spec.Allows(MemoryStrategy::kRecompute)
            ? " even with every activation recomputed"
            : " (training.memory_strategies allows no recomputation)",
        std::string(last_error.message())));
  }
  const bool may_go_on = !best->made.found.proven_optimal &&
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
