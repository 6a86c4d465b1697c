#include "planner/moves/start/exchange_ends.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

// The most microbatches that are candidates for the first and the last place.
constexpr int32_t kMaxCandidates = 24;
// Places at either end that are exchanged; fewer on graphs that are not small.
constexpr int32_t kEnds = 3;
constexpr int32_t kEndsOfLarger = 2;
constexpr int32_t kSmallGraph = 300;
// On graphs above these sizes, only the best choice is improved, or none: other
// moves gain more in the time of a short budget.
constexpr int32_t kOneChoice = 600;
constexpr int32_t kNoChoice = 2000;
// Number of other microbatches in the first place whose choices are polished.
constexpr size_t kFronts = 8;
constexpr int64_t kFrontPolish = 50;

}  // namespace

ExchangeEnds::ExchangeEnds(SearchState& state)
    : Move(state),
      may_gain_(!state.units().HasEqualLoads() &&
                state.units().period.size() > 2 &&
                state.graph().num_tasks <= kNoChoice &&
                !state.is_large_and_limited()) {}

void ExchangeEnds::Run(const SearchBudget& budget) {
  std::vector<Candidate>& bases = state().choices().bases;
  Exchange(&bases[next_base_], budget);
  // A choice that the budget has cut short is done again.
  if (state().MayGoOn(budget)) {
    next_base_ =
        state().graph().num_tasks > kOneChoice ? bases.size() : next_base_ + 1;
  }
  if (next_base_ == bases.size()) {
    std::stable_sort(
        bases.begin(), bases.end(),
        [](const Candidate& a, const Candidate& b) { return a.time < b.time; });
  }
}

std::vector<int32_t> ExchangeEnds::Microbatches() const {
  const OrderUnits& units = state().units();
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
  return microbatches;
}

OrderChoice ExchangeEnds::MovedToEnd(const OrderChoice& from,
                                     int32_t microbatch, int32_t place,
                                     bool front) const {
  const OrderUnits& units = state().units();
  std::vector<int32_t> moved;
  std::vector<int32_t> rest;
  for (const int32_t u : from.order) {
    (units.microbatch[u] == microbatch ? moved : rest).push_back(u);
  }
  const size_t offset =
      std::min(rest.size(), static_cast<size_t>(place) * moved.size());
  const auto at = static_cast<int64_t>(front ? offset : rest.size() - offset);
  OrderChoice choice = from;
  choice.order.assign(rest.begin(), rest.begin() + at);
  choice.order.insert(choice.order.end(), moved.begin(), moved.end());
  choice.order.insert(choice.order.end(), rest.begin() + at, rest.end());
  return choice;
}

void ExchangeEnds::Exchange(Candidate* base, const SearchBudget& budget) {
  SearchState& s = state();
  const std::vector<int32_t> microbatches = Microbatches();
  const int32_t ends =
      s.graph().num_tasks <= kSmallGraph ? kEnds : kEndsOfLarger;
  for (int32_t place = 0; place < ends; ++place) {
    for (const bool front : {false, true}) {
      Candidate best = *base;
      for (const int32_t m : microbatches) {
        if (!s.MayGoOn(budget)) break;
        const OrderChoice choice = MovedToEnd(base->choice, m, place, front);
        const int64_t time = s.TryChoice(choice, best.time);
        if (time < best.time) best = {.time = time, .choice = choice};
      }
      *base = std::move(best);
    }
  }
  if (!s.MayGoOn(budget)) return;
  std::vector<int32_t> start;
  const auto try_and_polish = [&](const OrderChoice& choice, int64_t n) {
    if (s.TryChoice(choice) >= kNoLimit) return;
    start.assign(s.LastSequence().begin(), s.LastSequence().end());
    s.Polish(start, n, budget);
  };
  try_and_polish(base->choice, SearchState::kPolish);
  // Which microbatch is best in the first place may show only after polishing.
  std::vector<Candidate> fronts;
  const int32_t first = s.units().microbatch[base->choice.order.front()];
  for (const int32_t m : microbatches) {
    if (!s.MayGoOn(budget)) return;
    if (m == first) continue;
    Candidate other{.choice = MovedToEnd(base->choice, m, 0, true)};
    other.time = s.TryChoice(
        other.choice, fronts.size() < kFronts ? kNoLimit : fronts.back().time);
    const auto at = std::upper_bound(
        fronts.begin(), fronts.end(), other.time,
        [](int64_t t, const Candidate& c) { return t < c.time; });
    fronts.insert(at, std::move(other));
    if (fronts.size() > kFronts) fronts.pop_back();
  }
  for (const Candidate& other : fronts) {
    if (s.MayGoOn(budget)) try_and_polish(other.choice, kFrontPolish);
  }
}

void ExchangeEnds::Inherit(const Move& earlier) {
  next_base_ = static_cast<const ExchangeEnds&>(earlier).next_base_;
}

}  // namespace pipeloom::planner
