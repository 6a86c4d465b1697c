#include "planner/step/refine_passes.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/bounds/plan_bound.h"
#include "planner/memory/choose_memory.h"
#include "planner/passes/pair_forwards.h"
#include "planner/passes/pair_passes.h"
#include "planner/passes/pass_forms.h"

namespace pipeloom::planner {
namespace {

using partition::FormSelection;
using partition::MemoryCandidate;
using partition::PassForm;
using partition::StagePair;
using partition::StepMemory;

// Numbers of sent and received tensors for which the limits leave room, one
// after the other until an answer fits.
constexpr int64_t kRoom[] = {4, 12};

// Maps tasks of the fused graph to those of the split one.
IdVector<TaskId, TaskId> TasksInSplit(
    const StageGraph& fused, const IdVector<StagePairId, StagePair>& from,
    const IdVector<StagePairId, StagePair>& to) {
  IdVector<TaskId, TaskId> now(fused.num_tasks());
  for (const StagePairId id : from.ids()) {
    now[from[id].forward] = to[id].forward;
    if (!from[id].backward.is_none()) now[from[id].backward] = to[id].backward;
  }
  return now;
}

const MemoryChoice& ChoiceOf(const StepMemory& memory,
                             const partition::MemorySelection& selection,
                             StagePairId id) {
  return memory.candidates(id)[static_cast<size_t>(selection[id])].choice;
}

// Splits every pair whose backward then fits the free room of its rank. Returns
// whether there was any.
bool SplitWhereItFits(const partition::MemorySelection& selection,
                      const StageGraph& graph, const RankOrders& orders,
                      StepMemory* memory) {
  bool any = false;
  const std::vector<int64_t> room = FreeRoom(FlatGraph(graph), orders);
  for (const StagePairId id : memory->pairs.ids()) {
    if (!memory->has_other_form(id) || memory->form(id) == PassForm::kSplit) {
      continue;
    }
    const Bytes more =
        memory->effect_in_other_form(id, selection[id]).backward_peak() -
        memory->effect(id, selection[id]).backward_peak();
    const RankId rank = graph.task(memory->pairs[id].backward).rank;
    if (more.count() <= room[static_cast<size_t>(rank.value())]) {
      memory->SwitchForm(id);
      any = true;
    }
  }
  return any;
}

// Looks for better forms and pairs of passes for one answer.
class GradientRefiner {
 public:
  // Keeps references. `limited` has everything kept and the answer's limits.
  GradientRefiner(const StageGraph& limited, const StepMemory& choices,
                  const MemorySchedule& made, const SearchBudget& budget)
      : limited_(limited),
        made_(made),
        budget_(budget),
        memory_(choices),
        orders_(made.found.schedule.order),
        shortest_(made.found.schedule.step_time().count()) {
    memory_.SetForms(made.forms);
  }

  // Tries forms and pairs with the answer's memory choices.
  absl::Status Run() {
    PIPELOOM_RETURN_IF_ERROR(Apply(made_.selection));
    PIPELOOM_RETURN_IF_ERROR(TryPairs(made_.selection));
    PIPELOOM_RETURN_IF_ERROR(TrySplit());
    if (IsOver()) return absl::OkStatus();
    PassFormChooser(graph_, memory_)
        .Choose(made_.selection, &memory_, &orders_,
                {.expired = [this] { return IsOver(); }});
    PIPELOOM_RETURN_IF_ERROR(Apply(made_.selection));
    PIPELOOM_RETURN_IF_ERROR(TryPairs(made_.selection));
    return TrySplit();
  }

  // Tries pairs with all backwards split, weight gradients put off, and memory
  // choices that make room for that: those for fused backwards have left none.
  absl::Status RunAnew() {
    if (IsOver() || !memory_.has_choices() || !HasFormChoice(memory_)) {
      return absl::OkStatus();
    }
    memory_.SetForms(FormSelection(memory_.pairs.size(), PassForm::kSplit));
    PIPELOOM_RETURN_IF_ERROR(Apply(made_.selection));
    orders_ = PutOffWeightGrads(graph_, memory_, made_.selection,
                                made_.found.schedule.order);
    SearchBudget rest;
    rest.expired = [this] { return IsOver(); };
    rest.threads = budget_.threads;
    MemoryChooser chooser(limited_, memory_);
    const absl::StatusOr<int64_t> time =
        chooser.Choose(orders_, made_.selection, rest, {});
    if (!time.ok()) {
      return absl::IsResourceExhausted(time.status()) ? absl::OkStatus()
                                                      : time.status();
    }
    PIPELOOM_RETURN_IF_ERROR(Apply(chooser.selection()));
    return TryPairs(chooser.selection());
  }

  // Returns what was found, the fastest first; only answers that were faster
  // than all before.
  std::vector<MemorySchedule> TakeAnswers() {
    std::reverse(answers_.begin(), answers_.end());
    return std::move(answers_);
  }

 private:
  bool IsOver() const {
    return budget_.stop.stop_requested() ||
           (budget_.expired && budget_.expired());
  }

  // Sets graph_ to the present forms and these choices.
  absl::Status Apply(const partition::MemorySelection& selection) {
    PIPELOOM_ASSIGN_OR_RETURN(
        graph_, partition::ApplyMemory(limited_, memory_, selection));
    return absl::OkStatus();
  }

  // Pairs weight gradients where possible, and keeps the answer if it is the
  // shortest.
  absl::Status TryPairs(const partition::MemorySelection& selection) {
    PairedOrders paired = PairPasses(graph_, memory_, selection, orders_,
                                     [this] { return IsOver(); });
    if (paired.step_time >= shortest_) return absl::OkStatus();
    MemorySchedule next = made_;
    next.selection = selection;
    next.forms = memory_.forms();
    next.pairs = std::move(paired.pairs);
    PIPELOOM_ASSIGN_OR_RETURN(const StageGraph with_pairs,
                              ApplyPairs(graph_, next.pairs));
    PIPELOOM_ASSIGN_OR_RETURN(
        next.found.schedule,
        TimeSchedule(with_pairs, std::move(paired.orders)));
    if (!ValidateSchedule(with_pairs, next.found.schedule).ok()) {
      return absl::OkStatus();
    }
    shortest_ = paired.step_time;
    answers_.push_back(std::move(next));
    return absl::OkStatus();
  }

  // Does the same with all other backwards split too where that fits.
  absl::Status TrySplit() {
    const FormSelection before = memory_.forms();
    if (IsOver() ||
        !SplitWhereItFits(made_.selection, graph_, orders_, &memory_)) {
      return absl::OkStatus();
    }
    const StageGraph unsplit = std::move(graph_);
    PIPELOOM_RETURN_IF_ERROR(Apply(made_.selection));
    const absl::Status status = TryPairs(made_.selection);
    memory_.SetForms(before);
    graph_ = unsplit;
    return status;
  }

  const StageGraph& limited_;
  const MemorySchedule& made_;
  const SearchBudget& budget_;
  StepMemory memory_;                      // Has the forms that are tried.
  RankOrders orders_;                      // The orders that are tried.
  StageGraph graph_{};                     // Has both forms and choices.
  int64_t shortest_;                       // Step time in ns.
  std::vector<MemorySchedule> answers_{};  // In the order in which they came.
};

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

// How often limits are lowered for tensors that ranks send and receive, and for
// how many more each time.
constexpr int kMaxMargins = 3;
constexpr int64_t kMoreRoom = 2;

// Runs forwards together with backwards for one answer.
class ForwardRefiner {
 public:
  // Keeps references to all of these.
  ForwardRefiner(const PreparedJob& job, const PlanInput& input,
                 const partition::BuiltGraph& built, const StepMemory& choices,
                 const MemorySchedule& made,
                 const IdVector<RankId, RankSpec>& limits,
                 const std::function<bool()>& is_over)
      : job_(job),
        input_(input),
        built_(built),
        choices_(choices),
        made_(made),
        limits_(limits),
        is_over_(is_over) {}

  // Tries the answer's forms of passes and fused ones; a shorter step becomes
  // `best`.
  absl::Status Run(Candidate* best) const {
    StepMemory memory = choices_;
    memory.SetForms(made_.forms);
    for (const bool fuses : {false, true}) {
      if (fuses && !FuseAll(&memory)) break;
      PIPELOOM_RETURN_IF_ERROR(Try(memory, best));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Try(const StepMemory& memory, Candidate* best) const {
    IdVector<RankId, RankSpec> lowered = limits_;
    for (int attempt = 0; attempt < kMaxMargins && !is_over_(); ++attempt) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const StageGraph graph,
          partition::ApplyMemory(built_.graph.WithRanks(lowered), memory,
                                 made_.selection));
      PIPELOOM_ASSIGN_OR_RETURN(
          ForwardPairedOrders paired,
          PairForwards(graph, memory, made_.selection,
                       made_.found.schedule.order, is_over_));
      if (paired.pairs.empty() ||
          paired.schedule.finish >= best->predicted.finish) {
        break;
      }
      PIPELOOM_ASSIGN_OR_RETURN(const StageGraph with_pairs,
                                ApplyForwardPairs(graph, paired.pairs));
      if (!ValidateSchedule(with_pairs, paired.schedule).ok()) break;
      MemorySchedule next = made_;
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
  const std::function<bool()>& is_over_;
};

}  // namespace

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
  // Indexed by backward.
  IdVector<TaskId, TaskId> weight_grad(graph.num_tasks());
  for (const StagePair& pair : pairs) {
    if (!pair.weight_grad.is_none()) {
      weight_grad[pair.backward] = pair.weight_grad;
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

absl::Status RefineGradients(const PreparedJob& job, const PlanInput& input,
                             const partition::BuiltGraph& built,
                             const StepMemory& choices,
                             const SearchBudget& budget, Candidate* best) {
  // Takes the fastest answer of a refiner that fits. Returns whether any did,
  // or whether there was none.
  const auto take =
      [&](GradientRefiner& refiner,
          const IdVector<RankId, RankSpec>& limits) -> absl::StatusOr<bool> {
    bool any = false;
    for (MemorySchedule& made : refiner.TakeAnswers()) {
      any = true;
      PIPELOOM_ASSIGN_OR_RETURN(
          std::optional<Candidate> candidate,
          MakeCandidate(job, input, built, choices, std::move(made), limits));
      if (!candidate.has_value()) continue;
      if (candidate->predicted.finish < best->predicted.finish) {
        *best = *std::move(candidate);
      }
      return true;
    }
    return !any;
  };
  const MemorySchedule made = best->made;
  IdVector<RankId, RankSpec> limits = best->limits;
  const StageGraph limited = built.graph.WithRanks(limits);
  if (job.strategy->chooses_memory()) {
    // Another order has other tensors under way at its peaks.
    for (const int64_t tensors : kRoom) {
      const IdVector<RankId, RankSpec> room =
          WithRoom(built.graph, built.graph.ranks(), tensors);
      for (const RankId r : limits.ids()) {
        Bytes& limit = limits[r].memory.limit;
        limit = std::min(limit, room[r].memory.limit);
      }
      const StageGraph lowered = built.graph.WithRanks(limits);
      GradientRefiner refiner(lowered, choices, made, budget);
      PIPELOOM_RETURN_IF_ERROR(refiner.RunAnew());
      PIPELOOM_ASSIGN_OR_RETURN(const bool done, take(refiner, limits));
      if (done) break;
    }
  }
  const IdVector<RankId, RankSpec> own = limited.ranks();
  GradientRefiner refiner(limited, choices, made, budget);
  PIPELOOM_RETURN_IF_ERROR(refiner.Run());
  return take(refiner, own).status();
}

absl::Status RefineForwards(const PreparedJob& job, const PlanInput& input,
                            const partition::BuiltGraph& built,
                            const StepMemory& memory, const Candidate& from,
                            const SearchBudget& budget, Candidate* best) {
  const std::function<bool()> is_over = [&] {
    return budget.stop.stop_requested() || (budget.expired && budget.expired());
  };
  return ForwardRefiner(job, input, built, memory, from.made, from.limits,
                        is_over)
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

NamedBound BoundOfStep(const JobSpec& job, const StageGraph& graph,
                       const StepMemory& memory) {
  return job.setup.paired_forwards ? BoundWithForwardPairs(graph, memory)
                                   : PlanBound(graph, &memory);
}

}  // namespace pipeloom::planner
