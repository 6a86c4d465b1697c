#include "planner/step/plan_choice.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "emulator/cluster/order_epilogues.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/execution_plan.h"
#include "planner/lower/kept_links.h"
#include "planner/lower/lower_plan.h"
#include "planner/passes/drop_fused.h"
#include "planner/passes/pair_forwards.h"
#include "planner/passes/pair_passes.h"
#include "planner/refine/gradient_refiner.h"
#include "planner/step/time_shares.h"
#include "planner/strategy_abilities.h"

namespace pipeloom::planner {
namespace {

// Shares of the budget at which an answer is lowered to count its sent and
// received tensors.
constexpr double kParts[] = {0.76, 0.88, 0.95};
// The same for a strategy that begins anew each time: a short part, which shows
// how much room its sent and received tensors take, then all the rest at once.
constexpr double kPartsAnew[] = {0.1, 0.95};

// Under a deadline, the share of a search's time until which an answer that
// does not fit is repaired.
constexpr double kRepairUntil = 1.1;

// The share until which new choices of memory are begun for the order of such
// an answer. Begun until 0.97, they ended up to 8 ms late in 50 steps of
// dip-vlm-l in 100 ms.
constexpr double kRefitUntil = 0.93;

// How often a schedule is made again with less memory because tensors that
// ranks send or receive, which a schedule does not account for, broke the
// limit.
constexpr int kMaxTightenings = 6;

// Answers that are tried in place of one that does not fit even if there is no
// time for it. One that takes at most kNearly times as long is taken at once;
// otherwise schedules within lowered limits are made too.
constexpr size_t kLeastInstead = 2;
constexpr double kNearly = 1.05;

// Number of tensors for which limits are lowered more where one was broken and
// the same order gets other choices.
constexpr int64_t kMuchMoreRoom = 6;

// Lowers `limits` by the amount that each rank's plan is over its true limit.
// Returns whether any rank was over.
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

// Returns, indexed by rank, the size of the largest tensor that it sends or
// receives.
IdVector<RankId, Bytes> LargestCrossing(const StageGraph& graph) {
  IdVector<RankId, Bytes> largest(graph.num_ranks());
  for (const Dependency& edge : graph.edges()) {
    const RankId from = graph.task(edge.from).rank;
    const RankId to = graph.task(edge.to).rank;
    if (from == to) continue;
    for (const RankId r : {from, to}) {
      largest[r] = std::max(largest[r], edge.payload);
    }
  }
  return largest;
}

// Lowers limits further after Tighten, for strategies that use all the memory
// there is, each time in another way: another rank may be over its limit the
// next time. Every rank gets room for two of its tensors, and a rank that was
// over gets `more` times that in addition to what Tighten took.
void LeaveRoom(const StageGraph& graph, const IdVector<RankId, Bytes>& peaks,
               int64_t more, IdVector<RankId, RankSpec>* limits) {
  const IdVector<RankId, Bytes> largest = LargestCrossing(graph);
  for (const RankId r : graph.rank_ids()) {
    const Bytes limit = graph.rank(r).memory.limit;
    if (limit == Bytes(0)) continue;
    const Bytes room = 2 * largest[r];
    Bytes& lowered = (*limits)[r].memory.limit;
    lowered = peaks[r] > limit ? lowered - more * room
                               : std::min(lowered, limit - room);
    lowered = std::max(Bytes(1), lowered);
  }
}

// Says how much of the limits sent and received tensors took, for messages
// about schedules that were made within lowered limits.
std::string TakenFromLimits(const StageGraph& graph,
                            const IdVector<RankId, RankSpec>& limits) {
  std::string text;
  for (const RankId r : graph.rank_ids()) {
    const Bytes taken = graph.rank(r).memory.limit - limits[r].memory.limit;
    if (taken == Bytes(0)) continue;
    absl::StrAppendFormat(
        &text, "%s %s of rank %d",
        text.empty() ? "; sent and received tensors take" : ",",
        FormatBytes(taken), r.value());
  }
  return text;
}

// Returns the share of the time that is over; 0 without a deadline.
double SpentOf(const PlanInput& input) {
  return input.budget.spent ? input.budget.spent() : 0;
}

// Gets one answer of the strategy, for the memory choices in `fixed` or, if
// null, with its own choices. `graph` has every activation kept.
absl::StatusOr<MemorySchedule> MakeSchedule(
    const PreparedJob& job, const PlanInput& input, const StageGraph& graph,
    const partition::StepMemory& memory,
    const partition::MemorySelection* fixed, const SearchBudget& budget) {
  if (fixed == nullptr) {
    return job.strategy->MakeMemorySchedule(graph, memory, job.partition,
                                            input.seed, budget);
  }
  MemorySchedule made{.selection = *fixed};
  PIPELOOM_ASSIGN_OR_RETURN(const StageGraph chosen,
                            partition::ApplyMemory(graph, memory, *fixed));
  PIPELOOM_ASSIGN_OR_RETURN(
      made.found,
      job.strategy->MakeSchedule(chosen, job.partition, input.seed, budget));
  return made;
}

// Fills in the plan of a lowered schedule and emulates it; leaves
// Candidate::limits unset.
absl::Status Finish(const PreparedJob& job, const PlanInput& input,
                    const partition::BuiltGraph& built, Candidate* candidate) {
  const JobSpec& spec = job.costs->job();
  ExecutionPlan& plan = candidate->plan;
  plan.job = spec.name;
  plan.step = input.step;
  plan.replica = input.replica;
  plan.schedule = std::string(job.strategy->name());
  plan.links = KeptLinks(*job.costs, plan);
  plan.lower_bound = candidate->made.found.lower_bound;
  plan.model_flops = built.model_flops;
  plan.peak_flops_per_second = job.costs->PeakFlopsPerSecond();
  PIPELOOM_ASSIGN_OR_RETURN(candidate->predicted,
                            emulator::EmulateInOrder(*built.update, {}, &plan));
  return absl::OkStatus();
}

partition::StepMemory WithForms(const partition::StepMemory& memory,
                                const partition::FormSelection& forms) {
  partition::StepMemory with = memory;
  with.SetForms(forms);
  return with;
}

// Lowers an answer. `graph` has every activation kept.
absl::StatusOr<ExecutionPlan> Lower(const StageGraph& graph,
                                    const partition::StepMemory& choices,
                                    const MemorySchedule& made) {
  const partition::StepMemory memory = WithForms(choices, made.forms);
  PIPELOOM_ASSIGN_OR_RETURN(
      StageGraph chosen,
      partition::ApplyMemoryWithCopyTasks(graph, memory, made.selection));
  PIPELOOM_ASSIGN_OR_RETURN(
      PlanProblem problem,
      DropFusedWeightGrads(std::move(chosen), memory, made.found.schedule));
  std::vector<HostCopy> copies;
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    const partition::MemoryEffect& effect =
        memory.effect(id, made.selection[id]);
    if (effect.offloaded == Bytes(0)) continue;
    copies.push_back({.task = problem.task_now[pair.forward],
                      .payload = effect.offloaded,
                      .time = effect.copy});
  }
  if (!made.pairs.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        problem.graph, ApplyPairs(problem.graph, made.pairs, problem.task_now));
  }
  if (!made.forward_pairs.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        problem.graph,
        ApplyForwardPairs(problem.graph, made.forward_pairs, problem.task_now));
  }
  return LowerPlan(std::move(problem.graph), problem.schedule, copies,
                   SendTime::kWithRoom);
}

// Returns the bytes that each rank needs: the most that its program holds plus,
// if it copies to the host, room for its largest copy on the way out; or the
// emulated peak, if queueing copies make that higher.
absl::StatusOr<IdVector<RankId, Bytes>> PeaksOf(const PreparedJob& job,
                                                const ExecutionPlan& plan) {
  IdVector<RankId, Bytes> peaks = PlanPeaks(plan);
  bool copies = false;
  for (const RankId r : peaks.ids()) {
    Bytes largest;
    for (const Instruction& instruction : plan.programs[r]) {
      if (const Offload* out = std::get_if<Offload>(&instruction)) {
        largest = std::max(largest, out->payload);
      }
    }
    copies = copies || largest > Bytes(0);
    peaks[r] += largest;
  }
  if (!copies) return peaks;
  PIPELOOM_ASSIGN_OR_RETURN(
      const StepTrace trace,
      emulator::EmulateStep(plan, {.links = job.costs->Links()}));
  const auto emulated = MemoryPeaks(trace);
  for (const RankId r : peaks.ids()) {
    peaks[r] = std::max(peaks[r], emulated[r].total);
  }
  return peaks;
}

}  // namespace

IdVector<RankId, RankSpec> WithMargin(const StageGraph& graph,
                                      IdVector<RankId, RankSpec> limits) {
  const IdVector<RankId, Bytes> largest = LargestCrossing(graph);
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    if (limit == graph.rank(r).memory.limit) continue;
    limit = std::max(Bytes(1), limit - 2 * largest[r]);
  }
  return limits;
}

IdVector<RankId, RankSpec> WithRoom(const StageGraph& graph,
                                    IdVector<RankId, RankSpec> limits,
                                    int64_t tensors) {
  const IdVector<RankId, Bytes> largest = LargestCrossing(graph);
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    if (limit == Bytes(0)) continue;
    limit = std::max(Bytes(1), limit - tensors * largest[r]);
  }
  return limits;
}

IdVector<RankId, RankSpec> LoweredMore(
    const StageGraph& graph, const IdVector<RankId, RankSpec>& limits,
    const IdVector<RankId, RankSpec>& lowered) {
  const IdVector<RankId, RankSpec> more =
      WithRoom(graph, lowered, kMuchMoreRoom);
  IdVector<RankId, RankSpec> result = limits;
  for (const RankId r : limits.ids()) {
    if (lowered[r] != limits[r]) result[r] = more[r];
  }
  return result;
}

namespace {

// Chooses memory again for the order of `made`, which breaks `limits` where
// `lowered` are lower, until there is room for the tensors that ranks send and
// receive. `lowering`: the share of the time that it took to lower `made`.
// ResourceExhausted: nothing was found that fits.
absl::StatusOr<Candidate> Refit(const PreparedJob& job, const PlanInput& input,
                                const partition::BuiltGraph& built,
                                const partition::StepMemory& memory,
                                MemorySchedule made,
                                IdVector<RankId, RankSpec> limits,
                                IdVector<RankId, RankSpec> lowered,
                                double lowering, const SearchBudget& budget) {
  const partition::StepMemory with_forms = WithForms(memory, made.forms);
  for (int attempt = 1; attempt < kMaxAnew; ++attempt) {
    limits = LoweredMore(built.graph, limits, lowered);
    PIPELOOM_ASSIGN_OR_RETURN(
        std::optional<partition::MemorySelection> selection,
        ChooseAnew(built.graph.WithRanks(limits), with_forms,
                   made.found.schedule.order, made.selection,
                   OnlyRepairs(ChoiceOptions(lowering)), budget.threads,
                   [&] { return budget.Abandoned(); }));
    if (!selection.has_value()) break;
    made.selection = *std::move(selection);
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph graph,
        partition::ApplyMemory(built.graph, with_forms, made.selection));
    PIPELOOM_ASSIGN_OR_RETURN(made.found.schedule,
                              TimeSchedule(graph, made.found.schedule.order));
    lowered = limits;
    PIPELOOM_ASSIGN_OR_RETURN(
        std::optional<Candidate> candidate,
        MakeCandidate(job, input, built, memory, made, limits, &lowered));
    if (candidate.has_value()) return *std::move(candidate);
  }
  return absl::ResourceExhaustedError(
      "the order that was found leaves no room for sent and received tensors");
}

bool IsNearlyAsShort(const Candidate& candidate, const MemorySchedule& made) {
  return ToSeconds(candidate.predicted.step_time()) <=
         kNearly * ToSeconds(made.found.schedule.step_time());
}

// Returns the first of the answers in `made.instead` that fits `limits`; at
// least kLeastInstead are tried, whatever the time is. `lowered`: limits that
// leave the room that was missing for `made`, with which a search goes on if
// the answer keeps them.
absl::StatusOr<std::optional<Candidate>> TryInstead(
    const PreparedJob& job, const PlanInput& input,
    const partition::BuiltGraph& built, const partition::StepMemory& memory,
    const MemorySchedule& made, const IdVector<RankId, RankSpec>& limits,
    const IdVector<RankId, RankSpec>& lowered, const SearchBudget& budget) {
  for (size_t i = 0; i < made.instead.size(); ++i) {
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    if (i >= kLeastInstead && budget.Exhausted(0)) break;
    MemorySchedule other{.selection = made.instead[i].selection};
    PIPELOOM_ASSIGN_OR_RETURN(
        const StageGraph graph,
        partition::ApplyMemory(built.graph, memory, other.selection));
    PIPELOOM_ASSIGN_OR_RETURN(other.found.schedule,
                              TimeSchedule(graph, made.instead[i].orders));
    const bool is_within =
        ValidateSchedule(graph.WithRanks(lowered), other.found.schedule).ok();
    PIPELOOM_ASSIGN_OR_RETURN(
        std::optional<Candidate> candidate,
        MakeCandidate(job, input, built, memory, std::move(other),
                      is_within ? lowered : limits));
    if (candidate.has_value()) return candidate;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Candidate> PlanChoice(
    const PreparedJob& job, const PlanInput& input,
    const partition::BuiltGraph& built, const partition::StepMemory& memory,
    const partition::MemorySelection* fixed, IdVector<RankId, RankSpec> limits,
    const SearchBudget& budget, int64_t* evaluations) {
  const StageGraph& graph = built.graph;
  const int64_t before = *evaluations;
  Candidate candidate;
  std::optional<Candidate> instead;
  double begin = 0;
  for (int attempt = 0;; ++attempt) {
    if (budget.Abandoned()) return absl::CancelledError("stopped");
    SearchBudget rest = budget;
    rest.max_evaluations =
        std::max<int64_t>(1, budget.max_evaluations - (*evaluations - before));
    absl::StatusOr<MemorySchedule> made =
        MakeSchedule(job, input, graph.WithRanks(limits), memory, fixed, rest);
    if (!made.ok()) {
      if (instead.has_value() && absl::IsResourceExhausted(made.status())) {
        return *std::move(instead);
      }
      return absl::Status(made.status().code(),
                          absl::StrCat(made.status().message(),
                                       TakenFromLimits(graph, limits)));
    }
    candidate.made = *std::move(made);
    *evaluations += candidate.made.found.evaluations;
    begin = SpentOf(input);
    PIPELOOM_ASSIGN_OR_RETURN(candidate.plan,
                              Lower(graph, memory, candidate.made));
    PIPELOOM_ASSIGN_OR_RETURN(const auto peaks, PeaksOf(job, candidate.plan));
    const IdVector<RankId, RankSpec> before_tightening = limits;
    if (!Tighten(graph, peaks, &limits)) break;
    if (fixed == nullptr) {
      absl::StatusOr<Candidate> fitting =
          Refit(job, input, built, memory, candidate.made, before_tightening,
                limits, SpentOf(input) - begin, budget);
      if (!absl::IsResourceExhausted(fitting.status())) return fitting;
      if (!instead.has_value()) {
        PIPELOOM_ASSIGN_OR_RETURN(
            instead, TryInstead(job, input, built, memory, candidate.made,
                                before_tightening, limits, budget));
        if (instead.has_value() && IsNearlyAsShort(*instead, candidate.made)) {
          return *std::move(instead);
        }
      }
    }
    // The order changes with the limits, and with the order the tensors under
    // way at its peaks; so each attempt leaves more margin.
    if (fixed == nullptr) LeaveRoom(graph, peaks, attempt + 1, &limits);
    if (attempt == kMaxTightenings && instead.has_value()) {
      return *std::move(instead);
    }
    if (attempt == kMaxTightenings) {
      for (const RankId r : graph.rank_ids()) {
        const Bytes limit = graph.rank(r).memory.limit;
        if (limit == Bytes(0) || peaks[r] <= limit) continue;
        return absl::ResourceExhaustedError(absl::StrFormat(
            "no schedule was found within the limits: rank %d needs %s with "
            "the tensors it sends and receives; its limit is %s",
            r.value(), FormatBytes(peaks[r]), FormatBytes(limit)));
      }
    }
  }
  PIPELOOM_RETURN_IF_ERROR(Finish(job, input, built, &candidate));
  candidate.limits = std::move(limits);
  candidate.lowering = SpentOf(input) - begin;
  if (instead.has_value() &&
      instead->predicted.finish < candidate.predicted.finish) {
    return *std::move(instead);
  }
  return candidate;
}

absl::Status ImproveCandidate(const PreparedJob& job, const PlanInput& input,
                              const partition::BuiltGraph& built,
                              const partition::StepMemory& memory,
                              Candidate* best, int64_t* evaluations) {
  const StageGraph& graph = built.graph;
  // A carried step lowered them already.
  IdVector<RankId, RankSpec> limits =
      best->made.go_on ? best->limits : WithMargin(graph, best->limits);
  std::optional<MemorySchedule> start;
  if (best->made.search != nullptr || best->made.go_on) start = best->made;
  const auto* const starts_from =
      dynamic_cast<const StartsFromOthers*>(job.strategy);
  const absl::Span<const double> parts = starts_from != nullptr
                                             ? absl::MakeConstSpan(kParts)
                                             : absl::MakeConstSpan(kPartsAnew);
  bool over = false;
  int overs = 0;
  int repairs = 0;
  for (size_t part = 0;;) {
    // Once the budget is spent, only an answer that does not fit is repaired,
    // and only for a short time.
    const bool exhausted = input.budget.Exhausted(*evaluations);
    if (exhausted && (!over || ++repairs > kMaxTightenings)) break;
    if (input.budget.spent && input.budget.spent() >= kRepairUntil) break;
    if (starts_from == nullptr && part >= parts.size() && !over) break;
    // Parts that are over are left out, as nothing would be searched.
    const auto is_over = [&](double until) {
      return input.budget.spent && input.budget.spent() >= until;
    };
    while (part + 1 < parts.size() && is_over(parts[part])) ++part;
    if (!over && is_over(parts.back())) break;
    SearchBudget rest = input.budget.PartUntil(
        parts[std::min(part, parts.size() - 1)], *evaluations);
    // All parts have had their evaluations; those that no part gets are left.
    if (!over && part >= parts.size() && rest.max_evaluations < 1) break;
    ++part;
    rest.max_evaluations = std::max<int64_t>(1, rest.max_evaluations);
    const StageGraph limited = graph.WithRanks(limits);
    absl::StatusOr<MemorySchedule> made =
        start.has_value()
            ? job.strategy->ImproveMemorySchedule(
                  limited, memory, job.partition, *start, input.seed, rest)
        : starts_from != nullptr
            ? starts_from->MakeMemoryScheduleFrom(
                  limited, memory, job.partition, best->made, input.seed, rest)
            : job.strategy->MakeMemorySchedule(limited, memory, job.partition,
                                               input.seed, rest);
    if (!made.ok()) {
      return absl::IsResourceExhausted(made.status()) ? absl::OkStatus()
                                                      : made.status();
    }
    *evaluations += std::max<int64_t>(1, made->found.evaluations);
    Candidate candidate{.made = *std::move(made)};
    PIPELOOM_ASSIGN_OR_RETURN(candidate.plan,
                              Lower(graph, memory, candidate.made));
    PIPELOOM_ASSIGN_OR_RETURN(const auto peaks, PeaksOf(job, candidate.plan));
    const IdVector<RankId, RankSpec> before = limits;
    over = Tighten(graph, peaks, &limits);
    if (over && SpentOf(input) >= kRefitUntil) break;
    if (over) {
      absl::StatusOr<Candidate> fitting =
          Refit(job, input, built, memory, candidate.made, before, limits,
                best->lowering, rest);
      if (fitting.ok()) {
        over = false;
        candidate = *std::move(fitting);
        limits = candidate.limits;
      } else if (!absl::IsResourceExhausted(fitting.status())) {
        return fitting.status();
      }
    } else {
      PIPELOOM_RETURN_IF_ERROR(Finish(job, input, built, &candidate));
      candidate.limits = limits;
    }
    start = candidate.made;
    if (over) {
      // The first time, limits are lowered only by what was missing: room for
      // tensors on every rank costs more time than a little memory missing on
      // one.
      if (++overs > 1) LeaveRoom(graph, peaks, 1, &limits);
      continue;
    }
    if (candidate.predicted.finish > best->predicted.finish) continue;
    *best = std::move(candidate);
    if (best->made.found.proven_optimal) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Candidate>> MakeCandidate(
    const PreparedJob& job, const PlanInput& input,
    const partition::BuiltGraph& built, const partition::StepMemory& memory,
    MemorySchedule made, IdVector<RankId, RankSpec> limits,
    IdVector<RankId, RankSpec>* lowered) {
  const double begin = SpentOf(input);
  Candidate candidate{.limits = std::move(limits), .made = std::move(made)};
  PIPELOOM_ASSIGN_OR_RETURN(candidate.plan,
                            Lower(built.graph, memory, candidate.made));
  PIPELOOM_ASSIGN_OR_RETURN(const auto peaks, PeaksOf(job, candidate.plan));
  IdVector<RankId, RankSpec> unused = candidate.limits;
  if (Tighten(built.graph, peaks, lowered != nullptr ? lowered : &unused)) {
    return std::nullopt;
  }
  PIPELOOM_RETURN_IF_ERROR(Finish(job, input, built, &candidate));
  candidate.lowering = SpentOf(input) - begin;
  return candidate;
}

absl::StatusOr<Candidate> MakeToFit(const PreparedJob& job,
                                    const PlanInput& input,
                                    const partition::BuiltGraph& built,
                                    const partition::StepMemory& memory,
                                    MemorySchedule made,
                                    IdVector<RankId, RankSpec> limits,
                                    const SearchBudget& budget) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph graph,
      partition::ApplyMemory(built.graph, WithForms(memory, made.forms),
                             made.selection));
  PIPELOOM_ASSIGN_OR_RETURN(made.found.schedule,
                            TimeSchedule(graph, made.found.schedule.order));
  IdVector<RankId, RankSpec> lowered = limits;
  const double begin = SpentOf(input);
  PIPELOOM_ASSIGN_OR_RETURN(
      std::optional<Candidate> candidate,
      MakeCandidate(job, input, built, memory, made, limits, &lowered));
  if (candidate.has_value()) return *std::move(candidate);
  return Refit(job, input, built, memory, std::move(made), std::move(limits),
               std::move(lowered), SpentOf(input) - begin, budget);
}

absl::StatusOr<RobustReport> MakeRobust(const PreparedJob& job,
                                        const PlanInput& input,
                                        const partition::BuiltGraph& built,
                                        const partition::StepMemory& memory,
                                        Candidate* best, int64_t* evaluations) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph graph,
      partition::ApplyMemory(built.graph, WithForms(memory, best->made.forms),
                             best->made.selection));
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (const RankId r : ranks.ids()) {
    ranks[r].memory.limit = best->limits[r].memory.limit;
  }
  SearchBudget rest = input.budget;
  rest.max_evaluations =
      std::max<int64_t>(1, rest.max_evaluations - *evaluations);
  PIPELOOM_ASSIGN_OR_RETURN(
      RobustResult found,
      RobustSearch(graph.WithRanks(ranks), best->made.found.schedule.order,
                   *input.robust, input.seed, rest));
  *evaluations += found.evaluations;
  RobustReport report{.chosen = found.nominal, .nominal = found.nominal};
  if (found.chosen.p90 >= found.nominal.p90) return report;
  Candidate candidate = *best;
  PIPELOOM_ASSIGN_OR_RETURN(candidate.made.found.schedule,
                            TimeSchedule(graph, std::move(found.order)));
  candidate.made.found.proven_optimal = false;
  PIPELOOM_ASSIGN_OR_RETURN(candidate.plan,
                            Lower(built.graph, memory, candidate.made));
  PIPELOOM_ASSIGN_OR_RETURN(const auto peaks, PeaksOf(job, candidate.plan));
  for (const RankId r : graph.rank_ids()) {
    const Bytes limit = graph.rank(r).memory.limit;
    if (limit > Bytes(0) && peaks[r] > limit) return report;
  }
  PIPELOOM_RETURN_IF_ERROR(Finish(job, input, built, &candidate));
  *best = std::move(candidate);
  report.chosen = found.chosen;
  return report;
}

}  // namespace pipeloom::planner
