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
#include "planner/lower_plan.h"
#include "planner/memory_choices.h"

namespace pipeloom::planner {
namespace {

// How often a schedule is made again with less memory because the tensors
// received from other ranks, which a schedule does not see, broke the limit.
constexpr int kMaxTightenings = 4;

struct Candidate {
  // The graph's ranks with the limits that the schedule was made with: lower
  // than the true ones by what received tensors need.
  IdVector<RankId, RankSpec> limits;
  ExecutionPlan plan;
  StepTrace predicted;
  RecomputeChoice recompute;
  Duration lower_bound{};
  bool proven_optimal = false;
};

// Lowers `limits` by what each rank's plan is over its true limit. True if any
// rank was.
bool Tighten(const StageGraph& graph, const IdVector<RankId, Bytes>& peaks,
             IdVector<RankId, RankSpec>* limits) {
  bool over = false;
  for (const RankId r : graph.rank_ids()) {
    const Bytes limit = graph.rank(r).memory.limit;
    if (limit == Bytes(0) || peaks[r] <= limit) continue;
    Bytes& tightened = (*limits)[r].memory.limit;
    tightened = std::max(Bytes(1), tightened - (peaks[r] - limit));
    over = true;
  }
  return over;
}

// The same with room for two more tensors on each rank whose limit had to be
// lowered: another schedule may have as many more on the way.
IdVector<RankId, RankSpec> WithMargin(const StageGraph& graph,
                                      IdVector<RankId, RankSpec> limits) {
  IdVector<RankId, Bytes> largest(graph.num_ranks());
  for (const Dependency& edge : graph.edges()) {
    Bytes& most = largest[graph.task(edge.to).rank];
    if (graph.task(edge.from).rank != graph.task(edge.to).rank) {
      most = std::max(most, edge.payload);
    }
  }
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    if (limit == graph.rank(r).memory.limit) continue;
    limit = std::max(Bytes(1), limit - 2 * largest[r]);
  }
  return limits;
}

// What received tensors took of the limits, for messages about schedules that
// were made within lowered limits.
std::string TakenFromLimits(const StageGraph& graph,
                            const IdVector<RankId, RankSpec>& limits) {
  std::string text;
  for (const RankId r : graph.rank_ids()) {
    const Bytes taken = graph.rank(r).memory.limit - limits[r].memory.limit;
    if (taken == Bytes(0)) continue;
    absl::StrAppendFormat(&text, "%s %s of rank %d",
                          text.empty() ? "; received tensors take" : ",",
                          FormatBytes(taken), r.value());
  }
  return text;
}

// Schedules within `limits`, lowers, emulates and checks one memory choice.
// Adds to `evaluations`, of an attempt that fails too.
absl::StatusOr<Candidate> PlanChoice(const PreparedJob& job,
                                     const PlanInput& input,
                                     const partition::BuiltGraph& built,
                                     RecomputeChoice recompute,
                                     IdVector<RankId, RankSpec> limits,
                                     const SearchBudget& budget,
                                     int64_t* evaluations) {
  const StageGraph& graph = built.graph;
  const int64_t before = *evaluations;
  Candidate candidate;
  for (int attempt = 0;; ++attempt) {
    SearchBudget rest = budget;
    rest.max_evaluations =
        std::max<int64_t>(1, budget.max_evaluations - (*evaluations - before));
    const absl::StatusOr<SearchResult> made = job.strategy->MakeSchedule(
        graph.WithRanks(limits), job.partition, input.seed, rest);
    if (!made.ok()) {
      return absl::Status(made.status().code(),
                          absl::StrCat(made.status().message(),
                                       TakenFromLimits(graph, limits)));
    }
    const SearchResult& found = *made;
    *evaluations += found.evaluations;
    candidate.lower_bound = found.lower_bound;
    candidate.proven_optimal = found.proven_optimal;
    PIPELOOM_ASSIGN_OR_RETURN(candidate.plan, LowerPlan(graph, found.schedule));
    const IdVector<RankId, Bytes> peaks = PlanPeaks(candidate.plan);
    if (!Tighten(graph, peaks, &limits)) break;
    if (attempt == kMaxTightenings) {
      for (const RankId r : graph.rank_ids()) {
        const Bytes limit = graph.rank(r).memory.limit;
        if (limit == Bytes(0) || peaks[r] <= limit) continue;
        return absl::ResourceExhaustedError(absl::StrFormat(
            "no schedule was found within the limits: rank %d needs %s with "
            "the tensors it receives; its limit is %s",
            r.value(), FormatBytes(peaks[r]), FormatBytes(limit)));
      }
    }
  }
  const JobSpec& spec = job.costs->job();
  ExecutionPlan& plan = candidate.plan;
  plan.job = spec.name;
  plan.step = input.step;
  plan.replica = input.replica;
  plan.schedule = std::string(job.strategy->name());
  plan.lower_bound = candidate.lower_bound;
  plan.model_flops = built.model_flops;
  plan.peak_flops_per_second = spec.cluster.device.bf16.flops_per_second *
                               spec.parallel.gpus_per_rank() * spec.parallel.pp;
  PIPELOOM_ASSIGN_OR_RETURN(candidate.predicted, emulator::EmulateStep(plan));
  plan.predicted_step_time = candidate.predicted.step_time();
  candidate.recompute = std::move(recompute);
  candidate.limits = std::move(limits);
  return candidate;
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

absl::StatusOr<PlanResult> PlanStep(const PreparedJob& job,
                                    const PlanInput& input) {
  const JobSpec& spec = job.costs->job();
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
  for (RecomputeChoice& choice : MemoryChoices(spec, job.partition)) {
    if (best.has_value() && input.budget.Exhausted(result.evaluations)) break;
    PIPELOOM_ASSIGN_OR_RETURN(
        partition::BuiltGraph built,
        partition::BuildStageGraph(
            *job.costs, job.partition, result.microbatches,
            {.split_backward = job.strategy->split_backward(),
             .recompute = choice}));
    absl::StatusOr<Candidate> candidate =
        PlanChoice(job, input, built, std::move(choice), built.graph.ranks(),
                   screening, &result.evaluations);
    if (!candidate.ok()) {
      if (!absl::IsResourceExhausted(candidate.status())) {
        return candidate.status();
      }
      last_error = candidate.status();
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
  if (!best->proven_optimal && !input.budget.Exhausted(result.evaluations)) {
    SearchBudget rest = input.budget;
    rest.max_evaluations -= result.evaluations;
    absl::StatusOr<Candidate> searched =
        PlanChoice(job, input, *best_graph, best->recompute,
                   WithMargin(best_graph->graph, std::move(best->limits)), rest,
                   &result.evaluations);
    if (searched.ok()) {
      if (searched->predicted.finish <= best->predicted.finish) {
        best = *std::move(searched);
      }
    } else if (!absl::IsResourceExhausted(searched.status())) {
      return searched.status();
    }
  }
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(best->plan));
  result.plan = std::move(best->plan);
  result.predicted = std::move(best->predicted);
  result.recompute = std::move(best->recompute);
  result.lower_bound = best->lower_bound;
  result.proven_optimal =
      best->proven_optimal && result.predicted.step_time() == best->lower_bound;
  return result;
}

}  // namespace pipeloom::planner
