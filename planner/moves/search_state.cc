#include "planner/moves/search_state.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace pipeloom::planner {
namespace {

// Rounds of forward-backward improvement.
constexpr int64_t kSweepRounds = 4;
// The number of best answers that are kept.
constexpr size_t kMaxElites = 8;
// Styles of list scheduling: patience in `kStep` times 0, 1, ... kPaces - 1,
// and how many of four schedules under limited memory keep takers. Chosen, like
// the former, on `pipeloom bench --random train:80`.
constexpr int64_t kPaces = 3;
constexpr double kStep = 0.5;
constexpr int64_t kKept = 3;

}  // namespace

SearchState::SearchState(const SearchSpace& space, int32_t index, uint64_t seed)
    : space_(&space),
      index_(index),
      evaluator_(*space.graph, *space.units),
      retimer_(*space.graph),
      tabu_(*space.graph),
      relabels_(*space.graph, *space.units),
      random_(seed) {
  int64_t total = 0;
  for (const int64_t d : space.graph->duration) total += d;
  mean_duration_ = static_cast<double>(total) /
                   static_cast<double>(std::max(1, space.graph->num_tasks));
}

void SearchState::BeginRound(int64_t limit) {
  stop_at_ = limit < std::numeric_limits<int64_t>::max() - evaluations_
                 ? evaluations_ + limit
                 : std::numeric_limits<int64_t>::max();
  cost_ = 0;
}

void SearchState::Keep(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= best_.time || time >= kNoLimit) return;
  best_.time = time;
  best_.sequence.assign(sequence.begin(), sequence.end());
}

bool SearchState::Adopt(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= overall().time) return false;
  if (restarted_) {
    AddElite(time, sequence);
    return false;
  }
  best_.time = time;
  best_.sequence.assign(sequence.begin(), sequence.end());
  return true;
}

void SearchState::LeaveBest() {
  AddElite(best_.time, best_.sequence);
  restarted_ = true;
  best_.time = std::numeric_limits<int64_t>::max();
}

void SearchState::AddElite(int64_t time, absl::Span<const int32_t> sequence) {
  if (time < top_.time) {
    top_.time = time;
    top_.sequence.assign(sequence.begin(), sequence.end());
  }
  for (const Answer& elite : elites_) {
    if (elite.time == time && absl::MakeConstSpan(elite.sequence) == sequence) {
      return;
    }
  }
  if (elites_.size() < kMaxElites) {
    elites_.push_back({});
  } else {
    // The worst makes room.
    const auto worst = std::max_element(
        elites_.begin(), elites_.end(),
        [](const Answer& a, const Answer& b) { return a.time < b.time; });
    if (worst->time <= time) return;
    std::swap(*worst, elites_.back());
  }
  elites_.back() = {.time = time,
                    .sequence = {sequence.begin(), sequence.end()}};
}

int64_t SearchState::TryChoice(const OrderChoice& choice, int64_t worth) {
  last_ideal_ = choice.idealised;
  int64_t time = 0;
  if (choice.idealised) {
    if (ideal_ == nullptr) {
      ideal_ = std::make_unique<OrderEvaluator>(*space_->ideal, *space_->units);
    }
    time = ideal_->Evaluate(choice);
    if (time < kNoLimit) time = retimer_.Retime(ideal_->sequence());
  } else {
    time = evaluator_.Evaluate(choice, std::max(worth, best_.time));
  }
  Keep(time, LastSequence());
  Spend(1, kListCost);
  return time;
}

absl::Span<const int32_t> SearchState::LastSequence() const {
  return last_ideal_ ? ideal_->sequence() : evaluator_.sequence();
}

bool SearchState::can_sweep() {
  if (sweeps_ == nullptr) sweeps_ = std::make_unique<ForwardBackward>(graph());
  return sweeps_->can_run();
}

int64_t SearchState::Sweep(absl::Span<const int32_t> sequence,
                           const SweepStyle& style) {
  const int64_t left = evaluations_left() / 2;
  const int64_t time = sweeps_->Improve(
      sequence, static_cast<int32_t>(std::min(kSweepRounds, left)), style,
      best_.time);
  Keep(time, sweeps_->sequence());
  Spend(sweeps_->evaluations(), sweeps_->evaluations() * kListCost);
  return time;
}

int64_t SearchState::Relist(absl::Span<const int32_t> order,
                            const SweepStyle& style, Prefer prefer,
                            const SearchBudget& budget) {
  const int64_t time = lists().Run({.order = order,
                                    .prefer = prefer,
                                    .patience = style.patience,
                                    .keeps_takers = style.keeps_takers});
  Spend(1, kListCost);
  if (time >= kNoLimit) return time;
  relisted_.assign(lists().sequence().begin(), lists().sequence().end());
  Keep(time, relisted_);
  if (!can_sweep() || budget.Exhausted(0)) return time;
  const int64_t swept = Sweep(relisted_, style);
  if (swept >= time) return time;
  relisted_.assign(sweeps_->sequence().begin(), sweeps_->sequence().end());
  return swept;
}

void SearchState::RelistBest(const SearchBudget& budget) {
  for (int64_t i = 0; i < kPaces && MayGoOn(budget); ++i) {
    const std::vector<int32_t> start = best_.sequence;
    Relist(start,
           {.patience = kStep * static_cast<double>(i),
            .keeps_takers = is_limited()},
           Prefer::kPriority, budget);
  }
}

SweepStyle SearchState::DrawStyle() {
  const double patience = kStep * static_cast<double>(random_.Below(kPaces));
  return {.patience = patience,
          .keeps_takers = is_limited() && random_.Below(4) < kKept};
}

void SearchState::Polish(absl::Span<const int32_t> sequence, int64_t iterations,
                         const SearchBudget& budget) {
  tabu_.Start(sequence);
  while (MayGoOn(budget) && tabu_.stalled() < iterations) {
    const int64_t steps = std::min(kSteps, evaluations_left());
    const int64_t done = tabu_.Run(steps, space_->bound, random_);
    Spend(done, done * kTabuCost);
    // There is nothing to move.
    if (done < steps) break;
    // Far behind the best: runs only for the given number of iterations.
    if (tabu_.best_time() >= best_.time && tabu_.iterations() >= iterations) {
      break;
    }
    Keep(tabu_.best_time(), tabu_.best_sequence());
  }
  Keep(tabu_.best_time(), tabu_.best_sequence());
}

}  // namespace pipeloom::planner
