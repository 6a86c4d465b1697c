// The beginning of a worker: forward-backward improvement, the portfolio, and
// from its best choices the exchange of the microbatches at both ends.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/search/search_worker.h"

namespace pipeloom::planner {
namespace {

// Choices drawn at random that are improved forwards and backwards at first.
constexpr int32_t kDrawnSpreads = 40;
constexpr int32_t kDrawnSpreadsOfLarge = 8;
// Choices that the exchange of ends starts from, in turns.
constexpr size_t kMaxBases = 2;
// Graphs with more tasks have a portfolio that takes a good part of a short
// budget.
constexpr int32_t kLargeGraph = 2500;
// The most microbatches that are candidates for the first and the last place.
constexpr int32_t kMaxCandidates = 24;
// Places at either end that are exchanged; fewer on graphs that are not small.
constexpr int32_t kEnds = 3;
constexpr int32_t kEndsOfLarger = 2;
constexpr int32_t kSmallGraph = 300;
// Number of other microbatches in the first place whose choices are polished.
constexpr size_t kFronts = 8;
constexpr int64_t kFrontPolish = 50;

}  // namespace

void SearchWorker::SweepFirst(const SearchBudget& budget) {
  if (sweeps_ == nullptr) return;
  std::vector<int32_t> start = sequence_;
  if (!std::exchange(first_swept_, true)) Sweep(start);
  const std::vector<OrderChoice>& spread = *space_->spread;
  while (next_spread_ < spread.size()) {
    if (!MayGoOn(budget)) return;
    const OrderChoice& choice = spread[next_spread_];
    next_spread_ += static_cast<size_t>(space_->num_workers);
    if (TryChoice(choice) >= kNoLimit) continue;
    start.assign(LastSequence().begin(), LastSequence().end());
    Sweep(start);
  }
  const int32_t drawn = space_->graph->num_tasks > kLargeGraph
                            ? kDrawnSpreadsOfLarge
                            : kDrawnSpreads;
  for (; spreads_drawn_ < drawn && MayGoOn(budget); ++spreads_drawn_) {
    SweepDrawn(1, budget);
  }
}

void SearchWorker::TryAsBase(const OrderChoice& choice) {
  // Odd workers come back to patterns only, which need more steps to pay.
  const bool may_be_home = keeps_pattern_ && IsPattern(choice.rule);
  int64_t worth = may_be_home ? home_.time : 0;
  if (choice.rule != PriorityRule::kTail) {
    worth = std::max(worth,
                     bases_.size() < kMaxBases ? kNoLimit : bases_.back().time);
  }
  const int64_t time = TryChoice(choice, worth);
  if (may_be_home && time < home_.time) {
    home_ = {.time = time, .choice = choice};
  }
  if (choice.rule == PriorityRule::kTail) return;
  const auto at = std::upper_bound(
      bases_.begin(), bases_.end(), time,
      [](int64_t t, const Candidate& c) { return t < c.time; });
  bases_.insert(at, {.time = time, .choice = choice});
  if (bases_.size() > kMaxBases) bases_.pop_back();
}

void SearchWorker::Portfolio(const SearchBudget& budget) {
  const std::vector<OrderChoice>& portfolio = *space_->portfolio;
  if (!started_) {
    SweepFirst(budget);
    if (space_->warm_start || space_->graph->num_tasks <= kLargeGraph) {
      const std::vector<int32_t> start = sequence_;
      Polish(start, kPolish, budget);
    }
    if (!MayGoOn(budget)) return;
    started_ = true;
  }
  while (!inherited_.empty() && MayGoOn(budget)) {
    TryAsBase(inherited_.back());
    inherited_.pop_back();
  }
  const int64_t before = best_;
  for (int i = 0; i < 8 && next_portfolio_ < portfolio.size(); ++i) {
    if (!MayGoOn(budget)) return;
    const OrderChoice& choice = portfolio[next_portfolio_];
    next_portfolio_ += static_cast<size_t>(space_->num_workers);
    TryAsBase(choice);
  }
  // Polishes here, as on large graphs the portfolio takes all the time.
  if (best_ < before && space_->graph->num_tasks > kLargeGraph) {
    const std::vector<int32_t> start = sequence_;
    Polish(start, kShortPolish, budget);
  }
}

void SearchWorker::ExchangeEnds(Candidate* base, const SearchBudget& budget) {
  const OrderUnits& units = *space_->units;
  std::vector<int32_t> microbatches;
  std::vector<int64_t> load(units.period.size(), -1);
  for (int32_t u = 0; u < units.num_units(); ++u) {
    int64_t& sum = load[units.microbatch[u]];
    if (sum < 0) {
      sum = 0;
      microbatches.push_back(units.microbatch[u]);
    }
    sum += units.load[u];
  }
  std::sort(microbatches.begin(), microbatches.end(),
            [&](int32_t a, int32_t b) {
              return load[a] != load[b] ? load[a] < load[b] : a < b;
            });
  // Among many, takes those of least load: they fill and drain the pipeline
  // fastest.
  if (static_cast<int32_t>(microbatches.size()) > kMaxCandidates) {
    microbatches.resize(kMaxCandidates);
  }
  std::vector<int32_t> moved;
  std::vector<int32_t> rest;
  // Returns the choice with microbatch m behind (or ahead of) the units of
  // `place` others.
  const auto moved_to_end = [&](const OrderChoice& from, int32_t m,
                                int32_t place, bool front) {
    moved.clear();
    rest.clear();
    for (const int32_t u : from.order) {
      (units.microbatch[u] == m ? moved : rest).push_back(u);
    }
    const size_t offset =
        std::min(rest.size(), static_cast<size_t>(place) * moved.size());
    const auto at = static_cast<int64_t>(front ? offset : rest.size() - offset);
    OrderChoice choice = from;
    choice.order.assign(rest.begin(), rest.begin() + at);
    choice.order.insert(choice.order.end(), moved.begin(), moved.end());
    choice.order.insert(choice.order.end(), rest.begin() + at, rest.end());
    return choice;
  };
  const int32_t ends =
      space_->graph->num_tasks <= kSmallGraph ? kEnds : kEndsOfLarger;
  for (int32_t place = 0; place < ends; ++place) {
    for (const bool front : {false, true}) {
      Candidate best = *base;
      for (const int32_t m : microbatches) {
        if (!MayGoOn(budget)) break;
        const OrderChoice choice = moved_to_end(base->choice, m, place, front);
        const int64_t time = TryChoice(choice, best.time);
        if (time < best.time) best = {.time = time, .choice = choice};
      }
      *base = std::move(best);
    }
  }
  if (!MayGoOn(budget)) return;
  std::vector<int32_t> start;
  const auto try_and_polish = [&](const OrderChoice& choice, int64_t n) {
    if (TryChoice(choice) >= kNoLimit) return;
    start.assign(LastSequence().begin(), LastSequence().end());
    Polish(start, n, budget);
  };
  try_and_polish(base->choice, kPolish);
  // Which microbatch is best in the first place may show only after polishing.
  std::vector<Candidate> fronts;
  for (const int32_t m : microbatches) {
    if (!MayGoOn(budget)) return;
    if (m == units.microbatch[base->choice.order.front()]) continue;
    Candidate other{.choice = moved_to_end(base->choice, m, 0, true)};
    other.time = TryChoice(
        other.choice, fronts.size() < kFronts ? kNoLimit : fronts.back().time);
    const auto at = std::upper_bound(
        fronts.begin(), fronts.end(), other.time,
        [](int64_t t, const Candidate& c) { return t < c.time; });
    fronts.insert(at, std::move(other));
    if (fronts.size() > kFronts) fronts.pop_back();
  }
  for (const Candidate& other : fronts) {
    if (MayGoOn(budget)) try_and_polish(other.choice, kFrontPolish);
  }
}

}  // namespace pipeloom::planner
