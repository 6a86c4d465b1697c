#include "planner/moves/start/improve_first.h"

#include <utility>
#include <vector>

#include "planner/moves/start/drawn_choices.h"

namespace pipeloom::planner {
namespace {

// Choices drawn at random that are improved forwards and backwards. Under a
// limit fewer on large graphs, and none above kMostTasksDrawn: there they take
// all of a short budget and other moves gain more.
constexpr int32_t kDrawnSpreads = 40;
constexpr int32_t kDrawnSpreadsOfLarge = 8;
constexpr int32_t kDrawnSpreadsOfLargeLimited = 20;
constexpr int32_t kMostTasksDrawn = 2000;

int32_t NumDrawn(const SearchState& state) {
  if (state.is_limited() && state.graph().num_tasks > kMostTasksDrawn) return 0;
  if (state.is_large_and_limited()) return kDrawnSpreadsOfLargeLimited;
  return state.is_large() ? kDrawnSpreadsOfLarge : kDrawnSpreads;
}

}  // namespace

void ImproveFirst::Run(const SearchBudget& budget) {
  SearchState& s = state();
  SweepSpreads(budget);
  // On large graphs under a limit the first choices of the portfolio are far
  // better than what the tabu search reaches from the first answer.
  if (s.space().warm_start || !(s.is_large() || s.is_large_and_limited())) {
    const std::vector<int32_t> start = s.since_start().sequence;
    s.Polish(start, SearchState::kPolish, budget);
  }
  done_ = s.MayGoOn(budget);
}

void ImproveFirst::SweepSpreads(const SearchBudget& budget) {
  SearchState& s = state();
  if (!s.has_dominant()) return;
  std::vector<int32_t> start = s.since_start().sequence;
  if (!std::exchange(first_swept_, true)) s.Sweep(start);
  const std::vector<OrderChoice>& spread = *s.space().spread;
  while (next_spread_ < spread.size()) {
    if (!s.MayGoOn(budget)) return;
    const OrderChoice& choice = spread[next_spread_];
    next_spread_ += s.shares();
    if (s.TryChoice(choice) >= kNoLimit) continue;
    start.assign(s.LastSequence().begin(), s.LastSequence().end());
    s.Sweep(start);
  }
  const int32_t drawn = NumDrawn(s);
  for (; spreads_drawn_ < drawn && s.MayGoOn(budget); ++spreads_drawn_) {
    SweepDrawn(1, s, budget);
  }
}

void ImproveFirst::Inherit(const Move& earlier) {
  const auto& other = static_cast<const ImproveFirst&>(earlier);
  next_spread_ = other.next_spread_;
  spreads_drawn_ = other.spreads_drawn_;
}

}  // namespace pipeloom::planner
