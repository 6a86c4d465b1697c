#include "planner/search/search_worker.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pipeloom::planner {
namespace {

// Rounds without a better answer after which a worker starts anew; fewer with a
// dominant microbatch, where starts differ more than the results of improving
// them.
constexpr int64_t kPatience = 40;
constexpr int64_t kPatienceDominant = 1;
// Rounds of forward-backward improvement.
constexpr int64_t kSweepRounds = 4;

}  // namespace

SearchWorker::SearchWorker(const SearchSpace& space, int32_t index,
                           uint64_t seed)
    : space_(&space),
      evaluator_(*space.graph, *space.units),
      retimer_(*space.graph),
      tabu_(*space.graph),
      sequences_(*space.graph),
      relabels_(*space.graph, *space.units),
      random_(seed),
      keeps_pattern_(index % 2 == 1),
      symmetric_(std::all_of(
          space.units->load.begin(), space.units->load.end(),
          [&](int64_t load) { return load == space.units->load.front(); })),
      index_(index),
      next_spread_(static_cast<size_t>(index)),
      next_portfolio_(static_cast<size_t>(index)) {
  int64_t total = 0;
  for (const int64_t d : space.graph->duration) total += d;
  if (!space.spread->empty()) {
    sweeps_ = std::make_unique<ForwardBackward>(*space.graph);
    if (!sweeps_->can_run()) sweeps_ = nullptr;
  }
  mean_duration_ = static_cast<double>(total) /
                   static_cast<double>(std::max(1, space.graph->num_tasks));
}

void SearchWorker::Adopt(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= best()) return;
  if (restarted_) return AddElite(time, sequence);
  best_ = time;
  sequence_.assign(sequence.begin(), sequence.end());
  cycle_ = 0;
  stalled_cost_ = 0;
}

void SearchWorker::Inherit(const SearchWorker& earlier) {
  next_spread_ = earlier.next_spread_;
  spreads_drawn_ = earlier.spreads_drawn_;
  next_portfolio_ = earlier.next_portfolio_;
  next_base_ = earlier.next_base_;
  turn_ = earlier.turn_;
  inherited_ = earlier.inherited_;
  for (const Candidate& base : earlier.bases_) {
    inherited_.push_back(base.choice);
  }
  if (!earlier.home_.choice.order.empty()) {
    inherited_.push_back(earlier.home_.choice);
  }
}

void SearchWorker::Round(int64_t limit, const SearchBudget& budget) {
  stop_at_ = limit < std::numeric_limits<int64_t>::max() - evaluations_
                 ? evaluations_ + limit
                 : std::numeric_limits<int64_t>::max();
  cost_ = 0;
  const bool dominant = sweeps_ != nullptr;
  if (stalled_cost_ >=
          (dominant ? kPatienceDominant : kPatience) * kRoundCost &&
      (dominant || relabels_.can_move())) {
    Restart(budget);
  }
  const int64_t before = best_;
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    if (!begun()) {
      Portfolio(budget);
      continue;
    }
    if (next_base_ < bases_.size() && !symmetric_ &&
        space_->units->period.size() > 2) {
      ExchangeEnds(&bases_[next_base_], budget);
      // A choice that the budget has cut short is done again.
      if (MayGoOn(budget)) ++next_base_;
      if (next_base_ == bases_.size()) {
        std::stable_sort(bases_.begin(), bases_.end(),
                         [](const Candidate& a, const Candidate& b) {
                           return a.time < b.time;
                         });
      }
      continue;
    }
    TakeTurn(turn_++, budget);
    // Advances the cost even if a turn found nothing to do, so that the loop
    // ends.
    cost_ += 8;
  }
  stalled_cost_ = best_ < before ? 0 : stalled_cost_ + cost_;
}

void SearchWorker::Keep(int64_t time, absl::Span<const int32_t> sequence) {
  if (time >= best_ || time >= kNoLimit) return;
  best_ = time;
  sequence_.assign(sequence.begin(), sequence.end());
}

int64_t SearchWorker::TryChoice(const OrderChoice& choice, int64_t worth) {
  last_ideal_ = choice.idealised;
  int64_t time = 0;
  if (choice.idealised) {
    if (ideal_ == nullptr) {
      ideal_ = std::make_unique<OrderEvaluator>(*space_->ideal, *space_->units);
    }
    time = ideal_->Evaluate(choice);
    if (time < kNoLimit) time = retimer_.Retime(ideal_->sequence());
  } else {
    time = evaluator_.Evaluate(choice, std::max(worth, best_));
  }
  Keep(time, LastSequence());
  ++evaluations_;
  cost_ += kListCost;
  return time;
}

absl::Span<const int32_t> SearchWorker::LastSequence() const {
  return last_ideal_ ? ideal_->sequence() : evaluator_.sequence();
}

int64_t SearchWorker::Sweep(absl::Span<const int32_t> sequence) {
  const int64_t left = (stop_at_ - evaluations_) / 2;
  const int64_t time = sweeps_->Improve(
      sequence, static_cast<int32_t>(std::min(kSweepRounds, left)));
  Keep(time, sweeps_->sequence());
  evaluations_ += sweeps_->evaluations();
  cost_ += sweeps_->evaluations() * kListCost;
  return time;
}

void SearchWorker::Polish(absl::Span<const int32_t> sequence,
                          int64_t iterations, const SearchBudget& budget) {
  tabu_.Start(sequence);
  while (MayGoOn(budget) && tabu_.stalled() < iterations) {
    const int64_t steps = std::min(kSteps, stop_at_ - evaluations_);
    const int64_t done = tabu_.Run(steps, space_->bound, random_);
    evaluations_ += done;
    cost_ += done * kTabuCost;
    // There is nothing to move.
    if (done < steps) break;
    // Far behind the best: runs only for the given number of iterations.
    if (tabu_.best_time() >= best_ && tabu_.iterations() >= iterations) break;
    Keep(tabu_.best_time(), tabu_.best_sequence());
  }
  Keep(tabu_.best_time(), tabu_.best_sequence());
}

}  // namespace pipeloom::planner
