#include "planner/refine/gradient_refiner.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "planner/core/flat_graph.h"
#include "planner/memory/choose_memory.h"
#include "planner/passes/pair_passes.h"
#include "planner/passes/pass_forms.h"

namespace pipeloom::planner {
namespace {

using partition::FormSelection;
using partition::MemorySelection;
using partition::PassForm;
using partition::StagePair;
using partition::StepMemory;

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

// Returns the orders with the weight gradients of fused pairs, which take no
// time and so may stand anywhere later, directly after their backwards.
RankOrders FusedAfterBackwards(const StageGraph& graph,
                               const StepMemory& memory,
                               const RankOrders& orders) {
  // Indexed by backward.
  IdVector<TaskId, TaskId> follower(graph.num_tasks());
  IdVector<TaskId, uint8_t> follows(graph.num_tasks());
  for (const StagePairId id : memory.pairs.ids()) {
    const StagePair& pair = memory.pairs[id];
    if (pair.weight_grad.is_none() || memory.form(id) == PassForm::kSplit) {
      continue;
    }
    follower[pair.backward] = pair.weight_grad;
    follows[pair.weight_grad] = 1;
  }
  RankOrders moved(orders.size());
  for (const RankId r : orders.ids()) {
    for (const TaskId t : orders[r]) {
      if (follows[t] != 0) continue;
      moved[r].push_back(t);
      if (!follower[t].is_none()) moved[r].push_back(follower[t]);
    }
  }
  return moved;
}

}  // namespace

ChooseMemoryOptions OnlyRepairs(ChooseMemoryOptions options) {
  options.rounds = 1;
  options.program.keeps_start = true;
  return options;
}

absl::StatusOr<std::optional<MemorySelection>> ChooseAnew(
    const StageGraph& limited, const StepMemory& memory,
    const RankOrders& orders, const MemorySelection& selection,
    const ChooseMemoryOptions& options, int threads,
    const std::function<bool()>& is_over) {
  SearchBudget rest;
  rest.expired = is_over;
  rest.threads = threads;
  MemoryChooser chooser(limited, memory);
  const absl::StatusOr<int64_t> time =
      chooser.Choose(orders, selection, rest, options);
  if (time.ok()) return chooser.selection();
  if (absl::IsResourceExhausted(time.status())) return std::nullopt;
  return time.status();
}

GradientRefiner::GradientRefiner(const StageGraph& limited,
                                 const StepMemory& choices,
                                 const MemorySchedule& made, int64_t shortest,
                                 const SearchBudget& budget)
    : limited_(limited),
      made_(made),
      budget_(budget),
      memory_(choices),
      orders_(made.found.schedule.order),
      shortest_(shortest) {
  memory_.SetForms(made.forms);
}

absl::Status GradientRefiner::Run() {
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

absl::Status GradientRefiner::RunAnew(
    const std::optional<MemorySelection>& before,
    const ChooseMemoryOptions& options) {
  const bool has_answer = shortest_ < kNoLimit;
  if ((has_answer && IsOver()) || !memory_.has_choices() ||
      !HasPassChoice(memory_)) {
    return absl::OkStatus();
  }
  orders_ = FusedAfterBackwards(limited_, memory_, made_.found.schedule.order);
  memory_.SetForms(FormSelection(memory_.pairs.size(), PassForm::kSplit));
  const MemorySelection least = memory_.MinMemory();
  PIPELOOM_RETURN_IF_ERROR(Apply(least));
  orders_ = PutOffWeightGrads(graph_, memory_, least, orders_);
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::optional<MemorySelection> selection,
      ChooseAnew(limited_, memory_, orders_, before.value_or(made_.selection),
                 before.has_value() ? OnlyRepairs(options) : options,
                 budget_.threads, [this] { return IsOver(); }));
  if (!selection.has_value()) return absl::OkStatus();
  PIPELOOM_RETURN_IF_ERROR(Apply(*selection));
  return TryPairs(*selection);
}

std::vector<MemorySchedule> GradientRefiner::TakeAnswers() {
  std::reverse(answers_.begin(), answers_.end());
  return std::move(answers_);
}

// Sets graph_ to the present forms and these choices.
absl::Status GradientRefiner::Apply(
    const partition::MemorySelection& selection) {
  PIPELOOM_ASSIGN_OR_RETURN(
      graph_, partition::ApplyMemory(limited_, memory_, selection));
  return absl::OkStatus();
}

// Pairs weight gradients where possible, and keeps the answer if it is the
// shortest.
absl::Status GradientRefiner::TryPairs(
    const partition::MemorySelection& selection) {
  PairedOrders paired = PairPasses(graph_, memory_, selection, orders_,
                                   [this] { return IsOver(); });
  if (paired.step_time >= shortest_) return absl::OkStatus();
  MemorySchedule next = made_;
  next.selection = selection;
  next.forms = memory_.forms();
  next.pairs = std::move(paired.pairs);
  next.forward_pairs.clear();
  PIPELOOM_ASSIGN_OR_RETURN(const StageGraph with_pairs,
                            ApplyPairs(graph_, next.pairs));
  PIPELOOM_ASSIGN_OR_RETURN(next.found.schedule,
                            TimeSchedule(with_pairs, std::move(paired.orders)));
  if (!ValidateSchedule(with_pairs, next.found.schedule).ok()) {
    return absl::OkStatus();
  }
  shortest_ = paired.step_time;
  answers_.push_back(std::move(next));
  return absl::OkStatus();
}

// Does the same with all other backwards split too where that fits.
absl::Status GradientRefiner::TrySplit() {
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

}  // namespace pipeloom::planner
