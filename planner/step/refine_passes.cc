#include "planner/step/refine_passes.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/bounds/plan_bound.h"
#include "planner/passes/pair_forwards.h"
#include "planner/refine/fuse_last.h"
#include "planner/refine/gradient_refiner.h"
#include "planner/step/carried_step.h"
#include "planner/step/time_shares.h"

namespace pipeloom::planner {
namespace {

using partition::FormSelection;
using partition::MemoryCandidate;
using partition::MemorySelection;
using partition::PassForm;
using partition::StagePair;
using partition::StepMemory;

// Number of ranks whose last backwards are fused, one after another.
constexpr int kMostFused = 4;

// Number of sent and received tensors for which the limits leave room when
// memory is chosen anew.
constexpr int64_t kRoom = 4;
// Number of tensors for which limits are lowered more where one was broken.
constexpr int64_t kMoreRoom = 2;
// Under a deadline, from when on a bound must be quick.
constexpr double kQuickBoundFrom = 0.7;
// Under a deadline, until when it is chosen more than twice.
constexpr double kAnewUntil = 0.7;

// Maps tasks of a graph to those of one with more weight gradients.
IdVector<TaskId, TaskId> TasksInSplit(
    const StageGraph& fused, const IdVector<StagePairId, StagePair>& from,
    const IdVector<StagePairId, StagePair>& to) {
  IdVector<TaskId, TaskId> now(fused.num_tasks());
  const auto map = [&](TaskId task, TaskId in_split) {
    if (!task.is_none()) now[task] = in_split;
  };
  for (const StagePairId id : from.ids()) {
    map(from[id].forward, to[id].forward);
    map(from[id].backward, to[id].backward);
    map(from[id].weight_grad, to[id].weight_grad);
  }
  return now;
}

const MemoryChoice& ChoiceOf(const StepMemory& memory,
                             const partition::MemorySelection& selection,
                             StagePairId id) {
  return memory.candidates(id)[static_cast<size_t>(selection[id])].choice;
}

// Fuses every pair that has both forms. Returns whether there was any.
bool FuseAll(StepMemory* memory) {
  bool any = false;
  for (const StagePairId id : memory->pairs.ids()) {
    if (!memory->has_other_form(id) || memory->form(id) == PassForm::kFused) {
      continue;
    }
    memory->SwitchForm(id);
    any = true;
  }
  return any;
}

// How often limits are lowered for tensors that ranks send and receive.
constexpr int kMaxMargins = 3;

// Numbers of forwards for which memory is chosen anew to leave room, as passes
// that run together hold more of them.
constexpr int64_t kForwardsMore[] = {1, 2, 4};

// Runs forwards together with backwards for one answer.
class ForwardRefiner {
 public:
  // Keeps references to all of these.
  ForwardRefiner(const PreparedJob& job, const PlanInput& input,
                 const partition::BuiltGraph& built, const StepMemory& choices,
                 const MemorySchedule& made,
                 const IdVector<RankId, RankSpec>& limits, int threads,
                 const std::function<bool()>& is_over)
      : job_(job),
        input_(input),
        built_(built),
        choices_(choices),
        made_(made),
        limits_(limits),
        threads_(threads),
        is_over_(is_over) {}

  // Tries the answer's forms of passes and fused ones; a shorter step becomes
  // `best`.
  absl::Status Run(Candidate* best) const {
    StepMemory memory = choices_;
    memory.SetForms(made_.forms);
    for (const bool fuses : {false, true}) {
      if (fuses && !FuseAll(&memory)) break;
      PIPELOOM_RETURN_IF_ERROR(Try(memory, made_.selection, best));
    }
    // All are fused now.
    if (!job_.strategy->chooses_memory() || !memory.has_choices()) {
      return absl::OkStatus();
    }
    for (const int64_t forwards : kForwardsMore) {
      if (is_over_()) break;
      PIPELOOM_ASSIGN_OR_RETURN(
          const std::optional<MemorySelection> selection,
          ChooseAnew(built_.graph.WithRanks(WithForwards(memory, forwards)),
                     memory, made_.found.schedule.order, made_.selection,
                     /*options=*/{}, threads_, is_over_));
      if (selection.has_value()) {
        PIPELOOM_RETURN_IF_ERROR(Try(memory, *selection, best));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Returns the limits with room for so many more forwards of a mean size.
  IdVector<RankId, RankSpec> WithForwards(const StepMemory& memory,
                                          int64_t forwards) const {
    IdVector<RankId, Bytes> sum(limits_.size());
    IdVector<RankId, int64_t> count(limits_.size());
    for (const StagePairId id : memory.pairs.ids()) {
      if (memory.pairs[id].backward.is_none()) continue;
      const Task& forward = built_.graph.task(memory.pairs[id].forward);
      sum[forward.rank] += forward.alloc;
      ++count[forward.rank];
    }
    IdVector<RankId, RankSpec> lowered = limits_;
    for (const RankId r : lowered.ids()) {
      Bytes& limit = lowered[r].memory.limit;
      if (limit == Bytes(0) || count[r] == 0) continue;
      limit = std::max(Bytes(1),
                       limit - Bytes(sum[r].count() / count[r] * forwards));
    }
    return lowered;
  }

  absl::Status Try(const StepMemory& memory, const MemorySelection& selection,
                   Candidate* best) const {
    IdVector<RankId, RankSpec> lowered = limits_;
    for (int attempt = 0; attempt < kMaxMargins && !is_over_(); ++attempt) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const StageGraph graph,
          partition::ApplyMemory(built_.graph.WithRanks(lowered), memory,
                                 selection));
      PIPELOOM_ASSIGN_OR_RETURN(
          ForwardPairedOrders paired,
          PairForwards(graph, memory, selection, made_.found.schedule.order,
                       is_over_));
      if (paired.pairs.empty() ||
          paired.schedule.finish >= best->predicted.finish) {
        break;
      }
      PIPELOOM_ASSIGN_OR_RETURN(const StageGraph with_pairs,
                                ApplyForwardPairs(graph, paired.pairs));
      if (!ValidateSchedule(with_pairs, paired.schedule).ok()) break;
      MemorySchedule next = made_;
      next.selection = selection;
      next.forms = memory.forms();
      next.pairs.clear();
      next.forward_pairs = std::move(paired.pairs);
      next.found.schedule = std::move(paired.schedule);
      PIPELOOM_ASSIGN_OR_RETURN(std::optional<Candidate> candidate,
                                MakeCandidate(job_, input_, built_, choices_,
                                              std::move(next), limits_));
      if (!candidate.has_value()) {
        lowered = WithRoom(built_.graph, std::move(lowered), kMoreRoom);
        continue;
      }
      if (candidate->predicted.finish < best->predicted.finish) {
        *best = *std::move(candidate);
      }
      break;
    }
    return absl::OkStatus();
  }

  const PreparedJob& job_;
  const PlanInput& input_;
  const partition::BuiltGraph& built_;
  const StepMemory& choices_;
  const MemorySchedule& made_;
  const IdVector<RankId, RankSpec>& limits_;
  const int threads_;
  const std::function<bool()>& is_over_;
};

// Returns the fastest plan of this order with weight gradients put off and
// memory chosen anew for that by `options`, if any takes less than `shortest`
// ns and fits.
absl::StatusOr<std::optional<Candidate>> PutOffAnew(
    const PreparedJob& job, const PlanInput& input,
    const partition::BuiltGraph& built, const StepMemory& choices,
    const MemorySchedule& made, IdVector<RankId, RankSpec> limits,
    int64_t shortest, const ChooseMemoryOptions& options,
    const SearchBudget& budget) {
  // Another order has other tensors under way at its peaks.
  const IdVector<RankId, RankSpec> room =
      WithRoom(built.graph, built.graph.ranks(), kRoom);
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    limit = std::min(limit, room[r].memory.limit);
  }
  // An earlier step tells of more.
  if (const std::shared_ptr<const CarriedStep> carried =
          MostSimilar(input.carried, built.graph)) {
    const IdVector<RankId, RankSpec> as_before =
        CarriedLimits(*carried, built.graph);
    for (const RankId r : limits.ids()) {
      Bytes& limit = limits[r].memory.limit;
      limit = std::min(limit, as_before[r].memory.limit);
    }
  }
  std::optional<MemorySelection> before;
  for (int attempt = 0; attempt < kMaxAnew; ++attempt) {
    if (attempt > 2 && budget.spent && budget.spent() > kAnewUntil) break;
    const StageGraph within = built.graph.WithRanks(limits);
    GradientRefiner refiner(within, choices, made, shortest, budget);
    PIPELOOM_RETURN_IF_ERROR(refiner.RunAnew(before, options));
    std::vector<MemorySchedule> answers = refiner.TakeAnswers();
    if (answers.empty()) break;
    before = answers[0].selection;
    IdVector<RankId, RankSpec> lowered = limits;
    PIPELOOM_ASSIGN_OR_RETURN(
        std::optional<Candidate> candidate,
        MakeCandidate(job, input, built, choices, std::move(answers[0]), limits,
                      &lowered));
    if (candidate.has_value()) return candidate;
    limits = LoweredMore(built.graph, limits, lowered);
  }
  return std::nullopt;
}

// Returns the rank whose update ends last.
RankId LastRank(const StepTrace& trace) {
  RankId last;
  SimTime end = kStepStart;
  for (const Span& span : trace.spans) {
    if (span.kind != SpanKind::kEpilogue || span.end <= end) continue;
    last = span.rank;
    end = span.end;
  }
  return last;
}

// Returns the answer of `from`, which is for `step.searched_built`, for
// `step.built` with every pair fused.
absl::StatusOr<MemorySchedule> FusedAnswer(const SearchedStep& step,
                                           const Candidate& from) {
  PIPELOOM_ASSIGN_OR_RETURN(
      MemorySchedule made,
      InSplitStep(step.built, step.memory, step.searched_built, step.searched,
                  from.made));
  made.found.evaluations = from.made.found.evaluations;
  made.found.lower_bound = from.made.found.lower_bound;
  made.found.bound_source = from.made.found.bound_source;
  return made;
}

// Tries forms and pairs of `made` with its own memory choices, within `limits`;
// a shorter plan becomes `best`.
absl::Status TryForms(const PreparedJob& job, const PlanInput& input,
                      const partition::BuiltGraph& built,
                      const StepMemory& choices, const SearchBudget& budget,
                      const MemorySchedule& made,
                      const IdVector<RankId, RankSpec>& limits,
                      Candidate* best) {
  const StageGraph limited = built.graph.WithRanks(limits);
  GradientRefiner refiner(limited, choices, made,
                          made.found.schedule.step_time().count(), budget);
  PIPELOOM_RETURN_IF_ERROR(refiner.Run());
  for (MemorySchedule& answer : refiner.TakeAnswers()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        std::optional<Candidate> candidate,
        MakeCandidate(job, input, built, choices, std::move(answer), limits));
    if (!candidate.has_value()) continue;
    if (candidate->predicted.finish < best->predicted.finish) {
      *best = *std::move(candidate);
    }
    break;
  }
  return absl::OkStatus();
}

}  // namespace

StepMemory OnlyFused(const StepMemory& memory) {
  StepMemory fused = memory;
  fused.SetForms(FormSelection(memory.pairs.size(), PassForm::kFused));
  fused.other_form.assign(fused.other_form.size(), -1);
  return fused;
}

absl::StatusOr<MemorySchedule> InSplitStep(const partition::BuiltGraph& split,
                                           const StepMemory& split_memory,
                                           const partition::BuiltGraph& fused,
                                           const StepMemory& memory,
                                           const MemorySchedule& made) {
  const auto& pairs = split.pairs;
  MemorySchedule answer;
  answer.selection.resize(pairs.size());
  for (const StagePairId id : pairs.ids()) {
    if (pairs[id].backward.is_none()) continue;
    const MemoryChoice& choice = ChoiceOf(memory, made.selection, id);
    const std::vector<MemoryCandidate>& own = split_memory.candidates(id);
    const auto at =
        std::find_if(own.begin(), own.end(), [&](const MemoryCandidate& c) {
          return c.choice == choice ||
                 (c.choice.keeps_everything() && choice.keeps_everything());
        });
    if (at == own.end()) {
      return absl::NotFoundError("a memory choice is none of the split step's");
    }
    answer.selection[id] = static_cast<int32_t>(at - own.begin());
  }
  answer.forms = FormSelection(pairs.size(), PassForm::kFused);
  StepMemory with_forms = split_memory;
  with_forms.SetForms(answer.forms);
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph graph,
      partition::ApplyMemory(split.graph, with_forms, answer.selection));
  // Indexed by backward: the weight gradient that `fused` lacks.
  IdVector<TaskId, TaskId> weight_grad(graph.num_tasks());
  for (const StagePairId id : pairs.ids()) {
    if (!pairs[id].weight_grad.is_none() &&
        fused.pairs[id].weight_grad.is_none()) {
      weight_grad[pairs[id].backward] = pairs[id].weight_grad;
    }
  }
  const IdVector<TaskId, TaskId> now =
      TasksInSplit(fused.graph, fused.pairs, pairs);
  RankOrders orders(made.found.schedule.order.size());
  for (const RankId r : orders.ids()) {
    for (const TaskId t : made.found.schedule.order[r]) {
      orders[r].push_back(now[t]);
      if (!weight_grad[now[t]].is_none()) {
        orders[r].push_back(weight_grad[now[t]]);
      }
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(answer.found.schedule,
                            TimeSchedule(graph, std::move(orders)));
  return answer;
}

absl::StatusOr<SplitAnswer> ToSplit(const PreparedJob& job,
                                    const Microbatches& microbatches,
                                    const partition::BuiltGraph& fused,
                                    const StepMemory& memory,
                                    const MemorySchedule& made) {
  SplitAnswer answer;
  PIPELOOM_ASSIGN_OR_RETURN(
      answer.step.built,
      partition::BuildStageGraph(*job.costs, job.partition, microbatches,
                                 {.split_backward = true}));
  const auto& pairs = answer.step.built.pairs;
  // Indexed by stage: the choices that the answer made.
  IdVector<StageId, std::vector<MemoryChoice>> choices(
      job.partition.stages.size());
  for (const StagePairId id : pairs.ids()) {
    if (pairs[id].backward.is_none()) continue;
    const MemoryChoice& choice = ChoiceOf(memory, made.selection, id);
    std::vector<MemoryChoice>& own = choices[pairs[id].stage];
    if (std::find(own.begin(), own.end(), choice) == own.end()) {
      own.push_back(choice);
    }
  }
  answer.step.memory = partition::MakeStepMemory(*job.costs, job.partition,
                                                 microbatches, pairs, choices);
  PIPELOOM_ASSIGN_OR_RETURN(
      answer.made,
      InSplitStep(answer.step.built, answer.step.memory, fused, memory, made));
  return answer;
}

absl::StatusOr<Candidate> AsFused(const PreparedJob& job,
                                  const PlanInput& input,
                                  const SearchedStep& step,
                                  const Candidate& from,
                                  const SearchBudget& budget) {
  PIPELOOM_ASSIGN_OR_RETURN(MemorySchedule made, FusedAnswer(step, from));
  return MakeToFit(job, input, step.built, step.memory, std::move(made),
                   from.limits, budget);
}

absl::Status RefineGradients(const PreparedJob& job, const PlanInput& input,
                             const partition::BuiltGraph& built,
                             const StepMemory& choices,
                             const SearchBudget& budget, Candidate* best) {
  const MemorySchedule made = best->made;
  const IdVector<RankId, RankSpec> limits = best->limits;
  if (job.strategy->chooses_memory()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        std::optional<Candidate> anew,
        PutOffAnew(job, input, built, choices, made, limits,
                   made.found.schedule.step_time().count(),
                   ChoiceOptions(best->lowering), budget));
    if (anew.has_value() && anew->predicted.finish < best->predicted.finish) {
      *best = *std::move(anew);
    }
  }
  return TryForms(job, input, built, choices, budget, made, limits, best);
}

absl::StatusOr<Candidate> RefineSearched(const PreparedJob& job,
                                         const PlanInput& input,
                                         const SearchedStep& step,
                                         const Candidate& from,
                                         const SearchBudget& budget) {
  const partition::BuiltGraph& built = step.built;
  const StepMemory& memory = step.memory;
  PIPELOOM_ASSIGN_OR_RETURN(MemorySchedule made, FusedAnswer(step, from));
  // Weight gradients that were searched stay where they are.
  for (const StagePairId id : step.searched.pairs.ids()) {
    if (!step.searched.pairs[id].weight_grad.is_none()) {
      made.forms[id] = PassForm::kSplit;
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      std::optional<Candidate> anew,
      PutOffAnew(job, input, built, memory, made, from.limits, kNoLimit,
                 ChoiceOptions(from.lowering), budget));
  if (anew.has_value() && budget.spent && budget.spent() > kAnewUntil) {
    return *std::move(anew);
  }
  absl::StatusOr<Candidate> fused = AsFused(job, input, step, from, budget);
  if (!fused.ok()) {
    if (!anew.has_value()) return fused.status();
    return *std::move(anew);
  }
  PIPELOOM_RETURN_IF_ERROR(
      TryForms(job, input, built, memory, budget, MemorySchedule(fused->made),
               IdVector<RankId, RankSpec>(fused->limits), &*fused));
  if (anew.has_value() && anew->predicted.finish < fused->predicted.finish) {
    return *std::move(anew);
  }
  return fused;
}

absl::Status RefineForwards(const PreparedJob& job, const PlanInput& input,
                            const partition::BuiltGraph& built,
                            const StepMemory& memory, const Candidate& from,
                            const SearchBudget& budget, Candidate* best) {
  const std::function<bool()> is_over = [&] {
    return budget.stop.stop_requested() || (budget.expired && budget.expired());
  };
  return ForwardRefiner(job, input, built, memory, from.made, from.limits,
                        budget.threads, is_over)
      .Run(best);
}

absl::Status RefinePasses(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const StepMemory& memory, const SearchBudget& budget,
                          Candidate* best) {
  if (!input.pairs_forwards || !job.costs->job().setup.paired_forwards) {
    return RefineGradients(job, input, built, memory, budget, best);
  }
  const Candidate from = *best;
  PIPELOOM_RETURN_IF_ERROR(
      RefineGradients(job, input, built, memory, budget, best));
  return RefineForwards(job, input, built, memory, from, budget, best);
}

absl::Status FuseLastBackwards(const PreparedJob& job, const PlanInput& input,
                               const partition::BuiltGraph& built,
                               const StepMemory& choices,
                               const SearchBudget& budget, Candidate* best) {
  const emulator::StepUpdate& update = *built.update;
  if (!update.overlaps) return absl::OkStatus();
  const auto is_over = [&] {
    return budget.stop.stop_requested() ||
           (budget.expired && budget.expired()) ||
           (budget.spent && budget.spent() + best->lowering > kRefineUntil);
  };
  for (int i = 0; i < kMostFused; ++i) {
    const RankId rank = LastRank(best->predicted);
    if (rank.is_none() || update.ranks[rank].reduce == kZero) break;
    const SimTime before = best->predicted.finish;
    const MemorySchedule from = best->made;
    const IdVector<RankId, RankSpec> limits = best->limits;
    for (const FusedPasses which : {FusedPasses::kLast, FusedPasses::kAll}) {
      if (is_over()) break;
      PIPELOOM_ASSIGN_OR_RETURN(
          std::optional<MemorySchedule> made,
          FuseOnRank(built.graph, choices, from, rank, which));
      if (!made.has_value()) break;
      PIPELOOM_ASSIGN_OR_RETURN(
          std::optional<Candidate> candidate,
          MakeCandidate(job, input, built, choices, *std::move(made), limits));
      if (candidate.has_value() &&
          candidate->predicted.finish < best->predicted.finish) {
        *best = *std::move(candidate);
      }
    }
    if (best->predicted.finish == before) break;
  }
  return absl::OkStatus();
}

NamedBound BoundOfStep(const JobSpec& job, const StageGraph& graph,
                       const StepMemory& memory, const SearchBudget& budget) {
  if (job.setup.paired_forwards) return BoundWithForwardPairs(graph, memory);
  return budget.spent && budget.spent() > kQuickBoundFrom
             ? QuickPlanBound(graph, memory)
             : PlanBound(graph, &memory);
}

}  // namespace pipeloom::planner
