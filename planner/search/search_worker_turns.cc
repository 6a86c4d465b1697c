// The turns that a worker takes once it has begun.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "planner/search/search_worker.h"

namespace pipeloom::planner {
namespace {

// A choice within this many mean durations of the best is worth a tabu search.
constexpr double kPromising = 2;
// A choice to go on from may be worse by at most this many mean durations.
constexpr double kWorse = 0.3;
// Rounds of sequence annealing from one start to the next.
constexpr int64_t kCycle = 12;
constexpr int64_t kShakePolish = 100;
constexpr double kShakeGate = 8;
// Largest loss by an exchange of microbatches that is worth a tabu search, the
// temperature of accepting its result, and the distance from the best at which
// to begin from it again; in mean durations.
constexpr double kKickGate = 4;
constexpr double kKickTemperature = 0.3;
constexpr double kKickReset = 1;
constexpr int64_t kKickPolish = 60;
constexpr double kPlaceTemperature = 0.5;

}  // namespace

void SearchWorker::TakeTurn(int64_t turn, const SearchBudget& budget) {
  if (relabels_.can_move() && relabels_.keeps_memory()) {
    if (turn % 40 == 19) return ImproveSequence(budget);
    if (turn % 40 == 39) return PerturbChoices(budget);
    switch (turn % 10) {
      case 3:
      case 7:
        return Shake(budget);
      case 6:
        return PlaceMicrobatches(budget);
      default:
        return KickMicrobatches(budget);
    }
  }
  switch (turn % 5) {
    case 0:
    case 2:
      return PerturbChoices(budget);
    case 1:
      return ImproveBest(budget);
    case 3:
      return Shake(budget);
    default:
      return ImproveSequence(budget);
  }
}

void SearchWorker::PerturbChoices(const SearchBudget& budget) {
  if (home_.choice.order.empty() || (!keeps_pattern_ && !bases_.empty() &&
                                     bases_.front().time < home_.time)) {
    if (bases_.empty()) return;
    home_ = bases_.front();
  }
  if (current_.choice.order.empty() ||
      static_cast<double>(current_.time - home_.time) > 3 * mean_duration_) {
    current_ = home_;
  }
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    Candidate next{.time = 0, .choice = current_.choice};
    Perturb(&next.choice, random_);
    if (random_.Below(3) == 0) Perturb(&next.choice, random_);
    const int64_t before = best_;
    const double gate =
        static_cast<double>(before) + kPromising * mean_duration_;
    const double tolerated =
        static_cast<double>(current_.time) + kWorse * mean_duration_;
    next.time = TryChoice(
        next.choice,
        std::max(home_.time, 1 + static_cast<int64_t>(
                                     std::min(std::max(gate, tolerated),
                                              static_cast<double>(kNoLimit)))));
    if (next.time < home_.time) home_ = next;
    const auto worse = static_cast<double>(next.time - current_.time);
    const bool accepted =
        worse <= 0 || worse < kWorse * mean_duration_ * random_.Unit();
    if (accepted) current_ = next;
    if (next.time < kNoLimit &&
        static_cast<double>(next.time - before) < kPromising * mean_duration_) {
      const auto last = LastSequence();
      const std::vector<int32_t> start(last.begin(), last.end());
      Polish(start, kShortPolish, budget);
    }
  }
}

void SearchWorker::Shake(const SearchBudget& budget) {
  const FlatGraph& g = *space_->graph;
  const OrderUnits& units = *space_->units;
  ListScheduler& lists = evaluator_.scheduler();
  std::vector<int64_t> noise(static_cast<size_t>(units.num_units()));
  std::vector<int64_t> key(static_cast<size_t>(g.num_tasks));
  std::vector<int32_t> order;
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    if (shaken_sequence_.empty() ||
        static_cast<double>(shaken_ - best_) > 2 * mean_duration_) {
      shaken_ = best_;
      shaken_sequence_ = sequence_;
    }
    const double reach = 2 * mean_duration_ /
                         static_cast<double>(int64_t{1} << random_.Below(4));
    const int64_t kind = random_.Below(3);
    for (int64_t& n : noise) {
      n = kind == 0 && random_.Below(4) != 0
              ? 0
              : static_cast<int64_t>(reach * (2 * random_.Unit() - 1));
    }
    retimer_.Retime(shaken_sequence_);
    for (int32_t t = 0; t < g.num_tasks; ++t) {
      key[t] = retimer_.start(t) +
               (kind == 2 ? static_cast<int64_t>(reach * (random_.Unit() - 0.5))
                          : noise[units.unit[t]]);
    }
    sorter_.Sort(key, &order);
    const int64_t time =
        lists.Run({.order = order,
                   .prefer = random_.Below(4) == 0 ? Prefer::kBackward
                                                   : Prefer::kPriority,
                   .patience = 0.5 * static_cast<double>(random_.Below(3))});
    ++evaluations_;
    cost_ += kListCost + 4;
    Keep(time, lists.sequence());
    if (static_cast<double>(time - shaken_) > kShakeGate * mean_duration_)
      continue;
    Polish(lists.sequence(), kShakePolish, budget);
    const auto worse = static_cast<double>(tabu_.best_time() - shaken_);
    if (worse <= 0 ||
        random_.Unit() < std::exp(-worse / (0.3 * mean_duration_))) {
      shaken_ = tabu_.best_time();
      shaken_sequence_.assign(tabu_.best_sequence().begin(),
                              tabu_.best_sequence().end());
    }
  }
}

void SearchWorker::KickMicrobatches(const SearchBudget& budget) {
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    if (kicked_sequence_.empty() ||
        static_cast<double>(kicked_ - best_) > kKickReset * mean_duration_) {
      kicked_ = best_;
      kicked_sequence_ = sequence_;
    }
    relabels_.Start(kicked_sequence_);
    const int64_t time = relabels_.Kick(random_);
    ++evaluations_;
    cost_ += 2;
    if (static_cast<double>(time - kicked_) > kKickGate * mean_duration_) {
      continue;
    }
    Polish(relabels_.sequence(), kKickPolish, budget);
    const auto worse = static_cast<double>(tabu_.best_time() - kicked_);
    if (worse <= 0 || random_.Unit() < std::exp(-worse / (kKickTemperature *
                                                          mean_duration_))) {
      kicked_ = tabu_.best_time();
      kicked_sequence_.assign(tabu_.best_sequence().begin(),
                              tabu_.best_sequence().end());
    }
  }
}

void SearchWorker::PlaceMicrobatches(const SearchBudget& budget) {
  relabels_.Start(sequence_);
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    const double left =
        1 - static_cast<double>(cost_) / static_cast<double>(kRoundCost);
    const int64_t done =
        relabels_.Run(std::min<int64_t>(25, stop_at_ - evaluations_),
                      kPlaceTemperature * mean_duration_ * left * left,
                      space_->bound, random_);
    evaluations_ += done;
    cost_ += std::max<int64_t>(done, 8);
  }
  const auto best = relabels_.best_sequence();
  Keep(relabels_.best_time(), best);
  Polish(best, kShakePolish, budget);
}

void SearchWorker::ImproveBest(const SearchBudget& budget) {
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    const std::vector<int32_t> start = sequence_;
    const int64_t before = evaluations_;
    Polish(start, kRoundCost / kTabuCost, budget);
    if (evaluations_ - before < kSteps) return;
  }
}

void SearchWorker::ImproveSequence(const SearchBudget& budget) {
  if (cycle_ % kCycle == 0) sequences_.Start(sequence_);
  const double left =
      1 - static_cast<double>(cycle_ % kCycle) / static_cast<double>(kCycle);
  ++cycle_;
  const double temperature = 0.3 * mean_duration_ * left * left;
  while (cost_ < kRoundCost && MayGoOn(budget)) {
    const int64_t done =
        sequences_.Run(std::min<int64_t>(25, stop_at_ - evaluations_),
                       temperature, space_->bound, random_);
    evaluations_ += done;
    cost_ += std::max<int64_t>(done, 8);
    Keep(sequences_.best_time(), sequences_.best_sequence());
  }
}

}  // namespace pipeloom::planner
