#include "planner/moves/turns/perturb_choices.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pipeloom::planner {
namespace {

// A choice within this many mean durations of the best is worth a tabu search.
constexpr double kPromising = 2;
// A choice to go on from may be worse by at most this many mean durations.
constexpr double kWorse = 0.3;
// The distance from the best choice at which to begin from it again.
constexpr double kReset = 3;

}  // namespace

bool PerturbChoices::has_work() const {
  return !state().choices().home.choice.order.empty() ||
         !state().choices().bases.empty();
}

void PerturbChoices::Run(const SearchBudget& budget) {
  SearchState& s = state();
  if (!has_work()) return;
  const std::vector<Candidate>& bases = s.choices().bases;
  Candidate& home = s.choices().home;
  if (home.choice.order.empty() || (!s.keeps_pattern() && !bases.empty() &&
                                    bases.front().time < home.time)) {
    home = bases.front();
  }
  if (current_.choice.order.empty() ||
      static_cast<double>(current_.time - home.time) >
          kReset * s.mean_duration()) {
    current_ = home;
  }
  while (s.RoundMayGoOn(budget)) {
    Candidate next{.time = 0, .choice = current_.choice};
    Perturb(&next.choice, s.random());
    if (s.random().Below(3) == 0) Perturb(&next.choice, s.random());
    const int64_t before = s.since_start().time;
    const double gate =
        static_cast<double>(before) + kPromising * s.mean_duration();
    const double tolerated =
        static_cast<double>(current_.time) + kWorse * s.mean_duration();
    next.time = s.TryChoice(
        next.choice,
        std::max(home.time, 1 + static_cast<int64_t>(
                                    std::min(std::max(gate, tolerated),
                                             static_cast<double>(kNoLimit)))));
    if (next.time < home.time) home = next;
    const auto worse = static_cast<double>(next.time - current_.time);
    const bool accepted =
        worse <= 0 || worse < kWorse * s.mean_duration() * s.random().Unit();
    if (accepted) current_ = next;
    if (next.time < kNoLimit && static_cast<double>(next.time - before) <
                                    kPromising * s.mean_duration()) {
      const auto last = s.LastSequence();
      const std::vector<int32_t> start(last.begin(), last.end());
      s.Polish(start, SearchState::kShortPolish, budget);
    }
  }
}

}  // namespace pipeloom::planner
