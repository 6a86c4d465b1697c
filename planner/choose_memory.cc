#include "planner/choose_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/executor.h"
#include "planner/retime.h"

namespace pipeloom::planner {
namespace {

using partition::MemoryEffect;
using partition::MemorySelection;
using partition::StagePair;
using partition::StepMemory;

// Positions of a pair's tasks in the order of its rank.
struct PairSpan {
  int32_t forward = 0;
  int32_t backward = 0;
  int32_t weight_grad = 0;  // backward, if not split.
};

// What a pair uses with one effect, by position.
std::vector<IntegerProgram::Use> UsesOf(const MemoryEffect& effect,
                                        const PairSpan& span) {
  const int64_t alloc = effect.forward_alloc.count();
  const int64_t held = effect.held().count();
  std::vector<IntegerProgram::Use> uses;
  const auto add = [&](int32_t first, int32_t end, int64_t amount) {
    if (first < end && amount > 0) uses.push_back({first, end, amount});
  };
  if (alloc == held) {
    add(span.forward, span.backward, held);
  } else {
    add(span.forward, span.forward + 1, alloc);
    add(span.forward + 1, span.backward, held);
  }
  add(span.backward, span.backward + 1, effect.backward_peak().count());
  add(span.backward + 1, span.weight_grad + 1, effect.weight_grad_free.count());
  return uses;
}

}  // namespace

IntegerProgram MakeRankProgram(const StageGraph& graph,
                               const StepMemory& memory, RankId rank,
                               const std::vector<StagePairId>& pairs,
                               const std::vector<TaskId>& order) {
  IntegerProgram program;
  const auto num_positions = static_cast<int32_t>(order.size());
  IdVector<TaskId, int32_t> position(graph.num_tasks(), -1);
  for (int32_t p = 0; p < num_positions; ++p) {
    position[order[static_cast<size_t>(p)]] = p;
  }
  // A start is a row only if a neighbour's does not imply it: after a forward
  // that gives nothing back the next start holds no less, and after a backward
  // a weight gradient's start holds no more.
  std::vector<bool> is_row(order.size(), true);
  std::vector<int64_t> fixed(order.size(), 0);
  for (size_t p = 0; p < order.size(); ++p) {
    const Task& task = graph.task(order[p]);
    if (task.pass == Pass::kWeightGrad && p > 0 &&
        graph.task(order[p - 1]).pass != Pass::kForward) {
      is_row[p] = false;
    }
    // Corrected below for tasks of pairs with a choice.
    fixed[p] = task.alloc.count();
  }
  int64_t copying = 0;  // Set aside for copies.
  std::vector<PairSpan> spans;
  for (const StagePairId id : pairs) {
    const StagePair& pair = memory.pairs[id];
    const int32_t forward = position[pair.forward];
    const int32_t backward = position[pair.backward];
    const int32_t last =
        pair.weight_grad.is_none() ? backward : position[pair.weight_grad];
    PIPELOOM_CHECK(forward >= 0 && forward < backward && backward <= last);
    spans.push_back({forward, backward, last});
    int64_t offloaded = 0;
    for (const partition::MemoryCandidate& c : memory.candidates(id)) {
      offloaded = std::max(offloaded, c.effect.forward_free.count());
    }
    copying = std::max(copying, offloaded);
    if (offloaded == 0 && forward + 1 < num_positions) {
      is_row[static_cast<size_t>(forward)] = false;
    }
    for (const int32_t p : {forward, backward, last}) {
      fixed[static_cast<size_t>(p)] = 0;
    }
  }
  const RankMemory& limits = graph.rank(rank).memory;
  const int64_t capacity =
      limits.limit == Bytes(0)
          ? kNoLimit
          : (limits.limit - limits.static_bytes()).count() - 2 * copying;
  // The most that can be used, by position.
  std::vector<int64_t> most(order.size() + 1, 0);
  const auto add = [&](int32_t first, int32_t end, int64_t amount) {
    most[static_cast<size_t>(first)] += amount;
    most[static_cast<size_t>(end)] -= amount;
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    MemoryEffect largest;
    int64_t held = 0;
    int64_t backward = 0;
    for (const partition::MemoryCandidate& c : memory.candidates(pairs[i])) {
      const MemoryEffect& e = c.effect;
      largest.forward_alloc = std::max(largest.forward_alloc, e.forward_alloc);
      largest.weight_grad_free =
          std::max(largest.weight_grad_free, e.weight_grad_free);
      held = std::max(held, e.held().count());
      backward = std::max(backward, e.backward_peak().count());
    }
    const PairSpan& span = spans[i];
    add(span.forward, span.forward + 1, largest.forward_alloc.count());
    add(span.forward + 1, span.backward, held);
    add(span.backward, span.backward + 1, backward);
    add(span.backward + 1, span.weight_grad + 1,
        largest.weight_grad_free.count());
  }
  for (size_t p = 1; p < most.size(); ++p) most[p] += most[p - 1];
  std::vector<int32_t> row_at(order.size() + 1, 0);  // First at or after.
  for (size_t p = 0; p < order.size(); ++p) {
    row_at[p] = static_cast<int32_t>(program.limits.size());
    if (is_row[p] && most[p] + fixed[p] > capacity) {
      program.limits.push_back(capacity - fixed[p]);
    }
  }
  row_at.back() = static_cast<int32_t>(program.limits.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    IntegerProgram::Group& group = program.groups.emplace_back();
    const auto& candidates = memory.candidates(pairs[i]);
    for (size_t j = 0; j < candidates.size(); ++j) {
      IntegerProgram::Option option{.cost = candidates[j].effect.extra.count()};
      for (IntegerProgram::Use use : UsesOf(candidates[j].effect, spans[i])) {
        use.first_row = row_at[static_cast<size_t>(use.first_row)];
        use.end_row = row_at[static_cast<size_t>(use.end_row)];
        if (use.first_row < use.end_row) option.uses.push_back(use);
      }
      group.push_back(std::move(option));
    }
  }
  return program;
}

namespace {

// Then there is nothing to choose.
bool FitsWithEverythingKept(const StageGraph& graph, RankId rank,
                            const std::vector<TaskId>& order) {
  const RankMemory& memory = graph.rank(rank).memory;
  if (memory.limit == Bytes(0)) return true;
  Bytes held = memory.static_bytes();
  for (const TaskId t : order) {
    held += graph.task(t).alloc;
    if (held > memory.limit) return false;
    held -= graph.task(t).free;
  }
  return true;
}

}  // namespace

MemoryChooser::MemoryChooser(const StageGraph& graph, const StepMemory& memory)
    : graph_(&graph),
      memory_(&memory),
      flat_(graph),
      leanest_(memory.Leanest()),
      pairs_(graph.num_ranks()),
      keeps_all_(graph.num_ranks()),
      programs_(graph.num_ranks()),
      solvers_(graph.num_ranks()),
      extra_(memory.pairs.size()),
      late_(static_cast<size_t>(graph.num_tasks())) {
  for (const StagePairId id : memory.pairs.ids()) {
    const StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    pairs_[graph.task(pair.forward).rank].push_back(id);
    for (const partition::MemoryCandidate& c : memory.candidates(id)) {
      extra_[id].push_back(c.effect.extra.count());
    }
  }
}

absl::StatusOr<int64_t> MemoryChooser::Choose(
    const RankOrders& orders, const MemorySelection& start,
    const SearchBudget& budget, const ChooseMemoryOptions& options) {
  sequence_ = Linearize(flat_, orders);
  PIPELOOM_CHECK(sequence_.size() == static_cast<size_t>(flat_.num_tasks));
  for (const RankId r : graph_->rank_ids()) {
    keeps_all_[r] = FitsWithEverythingKept(*graph_, r, orders[r]);
    if (keeps_all_[r]) continue;
    programs_[r] = MakeRankProgram(*graph_, *memory_, r, pairs_[r], orders[r]);
    solvers_[r].emplace(programs_[r]);
  }
  costs_ = extra_;
  MemorySelection selection = leanest_;
  const bool has_start = start.size() == leanest_.size();
  PIPELOOM_RETURN_IF_ERROR(Solve(has_start ? start : leanest_, options.program,
                                 budget.threads, &selection));
  evaluations_ = 1;
  best_ = selection;
  int64_t best_time = Retime(selection);
  IntegerProgramOptions later = options.program;
  later.root_rounds = options.later_price_rounds;
  for (int32_t round = 1; round < options.rounds; ++round) {
    if (budget.Exhausted(evaluations_) || !recomputes_) break;
    PriceByFloat(selection, round);
    MemorySelection next = selection;
    PIPELOOM_RETURN_IF_ERROR(Solve(selection, later, budget.threads, &next));
    ++evaluations_;
    if (next == selection) continue;
    selection = std::move(next);
    const int64_t time = Retime(selection);
    if (time < best_time) {
      best_time = time;
      best_ = selection;
    }
  }
  return best_time;
}

// All ranks' programs with the costs as they are. `selection` may be `start`.
absl::Status MemoryChooser::Solve(const MemorySelection& start,
                                  const IntegerProgramOptions& options,
                                  int32_t threads, MemorySelection* selection) {
  IdVector<RankId, IntegerSolution> solutions(graph_->num_ranks());
  ParallelFor(threads, graph_->num_ranks(), [&](int32_t index) {
    const RankId r(index);
    if (keeps_all_[r]) return;
    IntegerProgram& program = programs_[r];
    std::vector<int32_t> choice;
    for (size_t i = 0; i < pairs_[r].size(); ++i) {
      const StagePairId id = pairs_[r][i];
      choice.push_back(start[id]);
      for (size_t j = 0; j < costs_[id].size(); ++j) {
        program.groups[i][j].cost = costs_[id][j];
      }
    }
    solutions[r] = solvers_[r]->Solve(choice, options);
  });
  for (const RankId r : graph_->rank_ids()) {
    if (!keeps_all_[r] && !solutions[r].feasible) return Shortage(r);
    for (size_t i = 0; i < pairs_[r].size(); ++i) {
      (*selection)[pairs_[r][i]] = keeps_all_[r] ? 0 : solutions[r].choice[i];
    }
  }
  return absl::OkStatus();
}

absl::Status MemoryChooser::Shortage(RankId rank) const {
  const IntegerProgram& program = programs_[rank];
  std::vector<int64_t> used(program.limits.size(), 0);
  for (size_t i = 0; i < pairs_[rank].size(); ++i) {
    const auto j = static_cast<size_t>(leanest_[pairs_[rank][i]]);
    for (const IntegerProgram::Use& use : program.groups[i][j].uses) {
      for (int32_t row = use.first_row; row < use.end_row; ++row) {
        used[static_cast<size_t>(row)] += use.amount;
      }
    }
  }
  int64_t over = 0;
  for (size_t row = 0; row < used.size(); ++row) {
    over = std::max(over, used[row] - program.limits[row]);
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "rank %d: this order of tasks needs %s more than its limit of %s with "
      "the memory choices that hold least",
      rank.value(), FormatBytes(Bytes(over)),
      FormatBytes(graph_->rank(rank).memory.limit)));
}

int64_t MemoryChooser::Retime(const MemorySelection& selection) {
  recomputes_ = false;
  IdVector<RankId, int64_t> longest(graph_->num_ranks(), 0);
  for (const StagePairId id : memory_->pairs.ids()) {
    const StagePair& pair = memory_->pairs[id];
    if (pair.backward.is_none()) continue;
    const MemoryEffect& effect = memory_->effect(id, selection[id]);
    flat_.duration[static_cast<size_t>(pair.backward.value())] =
        effect.backward.count();
    recomputes_ = recomputes_ || effect.extra > kZero;
    int64_t& copy = longest[graph_->task(pair.forward).rank];
    copy = std::max(copy, effect.copy.count());
  }
  SetCopyDelays(selection, longest);
  Retimer retimer(flat_);
  const int64_t time = retimer.Retime(sequence_);
  FindFloats(time, retimer.end());
  return time;
}

// How much later each task could end without a later end of the step.
void MemoryChooser::FindFloats(int64_t step_time,
                               absl::Span<const int64_t> end) {
  // By rank: when the task after must start.
  std::vector<int64_t> next_start;
  for (const int64_t epilogue : flat_.epilogue) {
    next_start.push_back(step_time - epilogue);
  }
  for (size_t i = sequence_.size(); i-- > 0;) {
    const auto task = static_cast<size_t>(sequence_[i]);
    int64_t& after = next_start[static_cast<size_t>(flat_.rank[task])];
    int64_t late = after;
    for (auto e = static_cast<size_t>(flat_.succ_offset[task]);
         e < static_cast<size_t>(flat_.succ_offset[task + 1]); ++e) {
      const auto next = static_cast<size_t>(flat_.succ[e]);
      late = std::min(late,
                      late_[next] - flat_.duration[next] - flat_.succ_delay[e]);
    }
    late_[task] = late;
    after = late - flat_.duration[task];
  }
  float_.resize(end.size());
  for (size_t t = 0; t < end.size(); ++t) float_[t] = late_[t] - end[t];
}

// The delays from forward to backward of pairs that are offloaded.
void MemoryChooser::SetCopyDelays(const MemorySelection& selection,
                                  const IdVector<RankId, int64_t>& longest) {
  const bool copies = std::any_of(longest.begin(), longest.end(),
                                  [](int64_t copy) { return copy > 0; });
  if (!copies && !has_copies_) return;
  has_copies_ = copies;
  for (const StagePairId id : memory_->pairs.ids()) {
    const StagePair& pair = memory_->pairs[id];
    if (pair.backward.is_none()) continue;
    int64_t delay = graph_->edge(pair.edge).delay.count();
    if (memory_->effect(id, selection[id]).forward_free > Bytes(0)) {
      delay += 2 * longest[graph_->task(pair.forward).rank];
    }
    const auto from = static_cast<size_t>(pair.forward.value());
    const auto to = static_cast<size_t>(pair.backward.value());
    for (auto e = static_cast<size_t>(flat_.pred_offset[to]);
         e < static_cast<size_t>(flat_.pred_offset[to + 1]); ++e) {
      if (flat_.pred[e] == pair.forward.value()) flat_.pred_delay[e] = delay;
    }
    for (auto e = static_cast<size_t>(flat_.succ_offset[from]);
         e < static_cast<size_t>(flat_.succ_offset[from + 1]); ++e) {
      if (flat_.succ[e] == pair.backward.value()) flat_.succ_delay[e] = delay;
    }
  }
}

// Recomputation that a pair has time for is nearly free. How much of its float
// a pair may spend varies by round, as pairs of one chain share it.
void MemoryChooser::PriceByFloat(const MemorySelection& selection,
                                 int32_t round) {
  constexpr double kShare[] = {0.25, 1.0, 0.1, 0.5};
  const double share = kShare[static_cast<size_t>(round - 1) % 4];
  for (const StagePairId id : memory_->pairs.ids()) {
    const StagePair& pair = memory_->pairs[id];
    if (pair.backward.is_none()) continue;
    const std::vector<int64_t>& extra = extra_[id];
    const int64_t now = extra[static_cast<size_t>(selection[id])];
    const auto spare = static_cast<int64_t>(
        share * static_cast<double>(
                    float_[static_cast<size_t>(pair.backward.value())]));
    const int64_t allowed = spare > 0 ? now + spare : 0;
    for (size_t j = 0; j < extra.size(); ++j) {
      costs_[id][j] = extra[j] / 8 + std::max<int64_t>(0, extra[j] - allowed);
    }
  }
}

absl::StatusOr<MemoryAnswer> ChooseMemory(const StageGraph& graph,
                                          const StepMemory& memory,
                                          const RankOrders& orders,
                                          const SearchBudget& budget,
                                          const MemorySelection& start,
                                          const ChooseMemoryOptions& options) {
  // Reports orders that are no orders.
  PIPELOOM_RETURN_IF_ERROR(TimeSchedule(graph, orders).status());
  MemoryChooser chooser(graph, memory);
  PIPELOOM_RETURN_IF_ERROR(
      chooser.Choose(orders, start, budget, options).status());
  MemoryAnswer answer;
  answer.evaluations = chooser.evaluations();
  answer.selection = chooser.selection();
  PIPELOOM_ASSIGN_OR_RETURN(
      answer.graph, partition::ApplyMemory(graph, memory, answer.selection));
  PIPELOOM_ASSIGN_OR_RETURN(answer.schedule,
                            TimeSchedule(answer.graph, orders));
  PIPELOOM_RETURN_IF_ERROR(ValidateSchedule(answer.graph, answer.schedule));
  return answer;
}

}  // namespace pipeloom::planner
