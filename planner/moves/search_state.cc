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
  if (!space.spread->empty()) {
    sweeps_ = std::make_unique<ForwardBackward>(*space.graph);
    if (!sweeps_->can_run()) sweeps_ = nullptr;
  }
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
  if (time >= best()) return false;
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

int64_t SearchState::Sweep(absl::Span<const int32_t> sequence) {
  const int64_t left = evaluations_left() / 2;
  const int64_t time = sweeps_->Improve(
      sequence, static_cast<int32_t>(std::min(kSweepRounds, left)));
  Keep(time, sweeps_->sequence());
  Spend(sweeps_->evaluations(), sweeps_->evaluations() * kListCost);
  return time;
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
