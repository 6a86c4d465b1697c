#include "planner/memory/choose_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/core/executor.h"
#include "planner/core/retime.h"
#include "planner/memory/memory_program.h"

namespace pipeloom::planner {
namespace {

using partition::MemoryEffect;
using partition::MemorySelection;
using partition::StagePair;
using partition::StepMemory;

// Rounds of prices until which a choice that fits is looked for. Chosen on 40
// random jobs near their smallest limits (docs/evaluation/memory_limits.md).
constexpr int32_t kRoundsToFit = 160;

// Returns whether the rank fits as it is; then there is nothing to choose.
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

bool FitsWithEverythingKept(const StageGraph& graph, const RankOrders& orders) {
  for (const RankId r : graph.rank_ids()) {
    if (!FitsWithEverythingKept(graph, r, orders[r])) return false;
  }
  return true;
}

MemoryChooser::MemoryChooser(const StageGraph& graph, const StepMemory& memory)
    : graph_(&graph),
      memory_(&memory),
      flat_(graph),
      min_memory_(memory.MinMemory()),
      least_peaks_(memory.Lean(1)),
      pairs_(graph.num_ranks()),
      keeps_all_(graph.num_ranks()),
      keeps_start_(graph.num_ranks()),
      tables_(memory),
      builders_(graph.num_ranks()),
      begun_(graph.num_ranks(), 0),
      programs_(graph.num_ranks()),
      solvers_(graph.num_ranks()),
      copy_sizes_(graph.num_ranks()),
      most_copied_(graph.num_ranks()),
      longest_copy_(graph.num_ranks()),
      extra_(memory.pairs.size()),
      late_(static_cast<size_t>(graph.num_tasks())) {
  for (const StagePairId id : memory.pairs.ids()) {
    const StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    const RankId rank = graph.task(pair.forward).rank;
    pairs_[rank].push_back(id);
    Bytes most;
    for (const partition::MemoryCandidate& c : memory.candidates(id)) {
      extra_[id].push_back(c.effect.extra.count());
      most = std::max(most, c.effect.offloaded);
    }
    if (most > Bytes(0)) copy_sizes_[rank].push_back(most);
  }
  for (std::vector<Bytes>& sizes : copy_sizes_) {
    std::sort(sizes.begin(), sizes.end());
  }
}

absl::StatusOr<int64_t> MemoryChooser::Choose(
    const RankOrders& orders, const MemorySelection& start,
    const SearchBudget& budget, const ChooseMemoryOptions& options) {
  sequence_ = Linearize(flat_, orders);
  PIPELOOM_CHECK(sequence_.size() == static_cast<size_t>(flat_.num_tasks));
  for (const RankId r : graph_->rank_ids()) {
    keeps_all_[r] = FitsWithEverythingKept(*graph_, r, orders[r]);
  }
  keeps_start_.assign(keeps_start_.size(), false);
  if (options.program.keeps_start && start.size() == min_memory_.size()) {
    PIPELOOM_ASSIGN_OR_RETURN(const StageGraph started,
                              partition::ApplyMemory(*graph_, *memory_, start));
    for (const RankId r : graph_->rank_ids()) {
      // Room for copies is not in the graph.
      keeps_start_[r] = !keeps_all_[r] && copy_sizes_[r].empty() &&
                        FitsWithEverythingKept(started, r, orders[r]);
    }
  }
  evaluations_ = 0;
  copies_ = false;
  absl::StatusOr<int64_t> time = ChooseRounds(orders, start, budget, options);
  bool offered = false;
  for (const RankId r : graph_->rank_ids()) {
    offered = offered || (!keeps_all_[r] && !copy_sizes_[r].empty());
  }
  if (!offered || (time.ok() && budget.Exhausted(evaluations_))) return time;
  if (!time.ok() && !absl::IsResourceExhausted(time.status())) return time;
  MemorySelection without = std::move(best_);
  copies_ = true;
  const absl::StatusOr<int64_t> with =
      ChooseRounds(orders, start, budget, options);
  if (!time.ok() || (with.ok() && *with < *time)) return with;
  best_ = std::move(without);
  return time;
}

absl::StatusOr<int64_t> MemoryChooser::ChooseRounds(
    const RankOrders& orders, const MemorySelection& start,
    const SearchBudget& budget, const ChooseMemoryOptions& options) {
  IntegerProgramOptions program = options.program;
  if (budget.expired) program.is_over = &budget.expired;
  for (const RankId r : graph_->rank_ids()) {
    if (!copy_sizes_[r].empty()) solvers_[r].reset();
    begun_[r] = 0;
  }
  costs_ = extra_;
  MemorySelection selection = min_memory_;
  const bool has_start = start.size() == min_memory_.size();
  PIPELOOM_RETURN_IF_ERROR(Solve(orders, has_start ? start : min_memory_,
                                 program, budget, &selection));
  ++evaluations_;
  best_ = selection;
  int64_t best_time = Retime(selection);
  IntegerProgramOptions later = program;
  later.root_rounds = options.later_price_rounds;
  for (int32_t round = 1; round < options.rounds; ++round) {
    if (budget.Exhausted(evaluations_) || !recomputes_) break;
    PriceByFloat(selection, round);
    MemorySelection next = selection;
    PIPELOOM_RETURN_IF_ERROR(Solve(orders, selection, later, budget, &next));
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

// Solves the programs of all ranks with the present costs. `selection` may be
// `start`.
absl::Status MemoryChooser::Solve(const RankOrders& orders,
                                  const MemorySelection& start,
                                  const IntegerProgramOptions& options,
                                  const SearchBudget& budget,
                                  MemorySelection* selection) {
  IdVector<RankId, IntegerSolution> solutions(graph_->num_ranks());
  ParallelFor(budget.threads, graph_->num_ranks(), [&](int32_t index) {
    const RankId r(index);
    if (keeps_all_[r] || budget.Abandoned()) return;
    std::vector<int32_t> choice;
    for (const StagePairId id : pairs_[r]) choice.push_back(start[id]);
    if (keeps_start_[r]) {
      solutions[r] = {.feasible = true, .choice = std::move(choice)};
      return;
    }
    if (begun_[r] == 0) {
      begun_[r] = 1;
      SolveFirst(r, orders[r], choice, options, &solutions[r]);
      return;
    }
    if (copy_sizes_[r].empty()) {
      for (size_t i = 0; i < pairs_[r].size(); ++i) {
        solvers_[r]->SetCosts(static_cast<int32_t>(i), costs_[pairs_[r][i]]);
      }
    } else {
      SetCosts(r, programs_[r].get());
    }
    solutions[r] = SolveOrLeast(r, choice, options, solvers_[r].get());
  });
  if (budget.Abandoned()) return absl::CancelledError("stopped");
  for (const RankId r : graph_->rank_ids()) {
    if (!keeps_all_[r] && !solutions[r].feasible) return Shortage(r, orders[r]);
    for (size_t i = 0; i < pairs_[r].size(); ++i) {
      const StagePairId id = pairs_[r][i];
      int32_t& chosen = (*selection)[id];
      chosen = keeps_all_[r] ? 0 : solutions[r].choice[i];
      if (memory_->effect(id, chosen).offloaded > most_copied_[r]) {
        chosen = 0;
      }
    }
  }
  return absl::OkStatus();
}

// Solves a program of a rank. Where little memory is left, prices may find no
// choice that fits although those that hold or peak least do, or find one only
// in more rounds.
IntegerSolution MemoryChooser::SolveOrLeast(
    RankId rank, absl::Span<const int32_t> start,
    const IntegerProgramOptions& options, IntegerProgramSolver* solver) const {
  IntegerSolution solution = solver->Solve(start, options);
  IntegerProgramOptions again = options;
  again.keeps_start = false;
  again.needs_start = true;
  for (const MemorySelection* least : {&min_memory_, &least_peaks_}) {
    if (solution.feasible) return solution;
    std::vector<int32_t> choice;
    for (const StagePairId id : pairs_[rank]) choice.push_back((*least)[id]);
    solution = solver->Solve(choice, again);
  }
  if (solution.feasible) return solution;
  again.needs_start = false;
  again.rounds_to_fit = kRoundsToFit;
  return solver->Solve({}, again);
}

void MemoryChooser::SetCosts(RankId rank, IntegerProgram* program) const {
  for (size_t i = 0; i < pairs_[rank].size(); ++i) {
    const std::vector<int64_t>& costs = costs_[pairs_[rank][i]];
    for (size_t j = 0; j < costs.size(); ++j) {
      program->groups[i][j].cost = costs[j];
    }
  }
}

// Solves the rank's first program, and decides how large its copies may be.
void MemoryChooser::SolveFirst(RankId rank, const std::vector<TaskId>& order,
                               const std::vector<int32_t>& start,
                               const IntegerProgramOptions& options,
                               IntegerSolution* best) {
  const std::vector<Bytes>& sizes = copy_sizes_[rank];
  if (sizes.empty()) {
    if (solvers_[rank] == nullptr) {
      solvers_[rank] = std::make_unique<IntegerProgramSolver>();
    }
    builders_[rank].Build(*graph_, *memory_, tables_, rank, pairs_[rank],
                          costs_, order, solvers_[rank].get());
    *best = SolveOrLeast(rank, start, options, solvers_[rank].get());
    return;
  }
  std::vector<Bytes> caps = {Bytes(0)};
  if (copies_ && !sizes.empty()) {
    const Bytes middle = sizes[sizes.size() / 2];
    if (2 * middle < sizes.back()) caps.push_back(middle);
    caps.push_back(sizes.back());
  }
  const auto prepare = [&](Bytes cap) {
    most_copied_[rank] = cap;
    longest_copy_[rank] = 0;
    for (const StagePairId id : pairs_[rank]) {
      for (const partition::MemoryCandidate& c : memory_->candidates(id)) {
        if (c.effect.offloaded > cap) continue;
        longest_copy_[rank] =
            std::max(longest_copy_[rank], c.effect.copy.count());
      }
    }
    if (sizes.empty()) return;
    PriceDelays(rank, order);
  };
  Bytes chosen{};
  for (const Bytes cap : caps) {
    prepare(cap);
    auto program = std::make_unique<IntegerProgram>(
        MakeRankProgram(*graph_, *memory_, rank, pairs_[rank], order, cap));
    SetCosts(rank, program.get());
    auto solver = std::make_unique<IntegerProgramSolver>(*program);
    IntegerSolution solution = SolveOrLeast(rank, start, options, solver.get());
    const bool better =
        solution.feasible && (!best->feasible || solution.cost < best->cost);
    if (solvers_[rank] != nullptr && !better) continue;
    *best = std::move(solution);
    solvers_[rank] = std::move(solver);
    programs_[rank] = std::move(program);
    chosen = cap;
  }
  if (chosen != caps.back()) prepare(chosen);
}

// Prices recomputation and the delays of backwards, assuming that they wait for
// nothing but the tasks between.
void MemoryChooser::PriceDelays(RankId rank, const std::vector<TaskId>& order) {
  std::vector<int64_t> begins;  // Indexed by position, without pauses.
  IdVector<TaskId, size_t> position(graph_->num_tasks(), 0);
  int64_t now = 0;
  for (const TaskId t : order) {
    position[t] = begins.size();
    begins.push_back(now);
    now += graph_->task(t).duration.count();
  }
  for (const StagePairId id : pairs_[rank]) {
    const StagePair& pair = memory_->pairs[id];
    const int64_t between = begins[position[pair.backward]] -
                            begins[position[pair.forward]] -
                            graph_->task(pair.forward).duration.count();
    for (size_t j = 0; j < costs_[id].size(); ++j) {
      costs_[id][j] = TimeOf(id, rank, j, between);
    }
  }
}

// Returns the cost of a candidate whose backward could start `wait` after its
// forward.
int64_t MemoryChooser::TimeOf(StagePairId id, RankId rank, size_t candidate,
                              int64_t wait) const {
  const int64_t extra = extra_[id][candidate];
  const Bytes copied =
      memory_->effect(id, static_cast<int32_t>(candidate)).offloaded;
  if (copied == Bytes(0)) return extra;
  if (copied > most_copied_[rank]) return 1;  // Stands for keeping everything.
  return extra + std::max<int64_t>(0, 2 * longest_copy_[rank] - wait);
}

absl::Status MemoryChooser::Shortage(RankId rank,
                                     const std::vector<TaskId>& order) const {
  const IntegerProgram program = MakeRankProgram(
      *graph_, *memory_, rank, pairs_[rank], order, most_copied_[rank]);
  std::vector<int64_t> used(program.limits.size(), 0);
  for (size_t i = 0; i < pairs_[rank].size(); ++i) {
    const auto j = static_cast<size_t>(min_memory_[pairs_[rank][i]]);
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
    if (!pair.weight_grad.is_none()) {
      flat_.duration[static_cast<size_t>(pair.weight_grad.value())] =
          effect.weight_grad.count();
    }
    recomputes_ = recomputes_ || effect.extra > kZero || effect.copy > kZero;
    int64_t& copy = longest[graph_->task(pair.forward).rank];
    copy = std::max(copy, effect.copy.count());
  }
  SetCopyDelays(selection, longest);
  Retimer retimer(flat_);
  const int64_t time = retimer.Retime(sequence_);
  FindFloats(time, retimer.end());
  const bool offered = std::any_of(
      copy_sizes_.begin(), copy_sizes_.end(),
      [](const std::vector<Bytes>& sizes) { return !sizes.empty(); });
  if (offered) FindWaits(retimer.end());
  return time;
}

// Finds by how much later each task could end without delaying the step.
void MemoryChooser::FindFloats(int64_t step_time,
                               absl::Span<const int64_t> end) {
  // Indexed by rank: the time when the task after must start.
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

// Finds how long each pair's activations could be on the host without delaying
// its backward for that alone.
void MemoryChooser::FindWaits(absl::Span<const int64_t> end) {
  std::vector<int64_t> rank_free(flat_.capacity.size(), 0);
  std::vector<int64_t> before(end.size(), 0);  // Time when the rank was free.
  for (const int32_t task : sequence_) {
    int64_t& free = rank_free[static_cast<size_t>(flat_.rank[task])];
    before[static_cast<size_t>(task)] = free;
    free = end[static_cast<size_t>(task)];
  }
  wait_.resize(memory_->pairs.size());
  for (const StagePairId id : memory_->pairs.ids()) {
    const StagePair& pair = memory_->pairs[id];
    if (pair.backward.is_none()) continue;
    const auto to = static_cast<size_t>(pair.backward.value());
    int64_t start = before[to];
    for (auto e = static_cast<size_t>(flat_.pred_offset[to]);
         e < static_cast<size_t>(flat_.pred_offset[to + 1]); ++e) {
      if (flat_.pred[e] == pair.forward.value()) continue;
      start = std::max(
          start, end[static_cast<size_t>(flat_.pred[e])] + flat_.pred_delay[e]);
    }
    wait_[id] = start - end[static_cast<size_t>(pair.forward.value())];
  }
}

// Sets the delays from forward to backward of offloaded pairs.
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
    if (memory_->effect(id, selection[id]).offloaded > Bytes(0)) {
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

// Prices recomputation that a pair has time for as nearly free. The share of
// its float that a pair may spend varies by round, as pairs of one chain share
// it.
void MemoryChooser::PriceByFloat(const MemorySelection& selection,
                                 int32_t round) {
  constexpr double kShare[] = {0.25, 1.0, 0.1, 0.5};
  const double share = kShare[static_cast<size_t>(round - 1) % 4];
  for (const StagePairId id : memory_->pairs.ids()) {
    const StagePair& pair = memory_->pairs[id];
    if (pair.backward.is_none()) continue;
    const RankId rank = graph_->task(pair.forward).rank;
    if (keeps_all_[rank]) continue;
    const int64_t wait = wait_.empty() ? kNoLimit : wait_[id];
    const auto time = [&](size_t j) { return TimeOf(id, rank, j, wait); };
    const auto spare = static_cast<int64_t>(
        share * static_cast<double>(
                    float_[static_cast<size_t>(pair.backward.value())]));
    const int64_t allowed =
        spare > 0 ? time(static_cast<size_t>(selection[id])) + spare : 0;
    for (size_t j = 0; j < costs_[id].size(); ++j) {
      const int64_t costs = time(j);
      costs_[id][j] = costs / 8 + std::max<int64_t>(0, costs - allowed);
    }
  }
}

absl::StatusOr<MemoryAnswer> ChooseMemory(const StageGraph& graph,
                                          const StepMemory& memory,
                                          const RankOrders& orders,
                                          const SearchBudget& budget,
                                          const MemorySelection& start,
                                          const ChooseMemoryOptions& options) {
  // Reports invalid orders.
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
