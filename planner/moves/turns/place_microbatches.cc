#include "planner/moves/turns/place_microbatches.h"

#include <algorithm>
#include <cstdint>

namespace pipeloom::planner {
namespace {

constexpr double kTemperature = 0.5;  // At first; in mean durations.
// Exchanges between two looks at the budget.
constexpr int64_t kExchanges = 25;
constexpr int64_t kPolish = 100;

}  // namespace

void PlaceMicrobatches::Run(const SearchBudget& budget) {
  SearchState& s = state();
  RelabelSearch& relabels = s.relabels();
  relabels.Start(s.since_start().sequence);
  while (s.RoundMayGoOn(budget)) {
    const double left = 1 - static_cast<double>(s.round_cost()) /
                                static_cast<double>(SearchState::kRoundCost);
    const int64_t done =
        relabels.Run(std::min(kExchanges, s.evaluations_left()),
                     kTemperature * s.mean_duration() * left * left,
                     s.space().bound, s.random());
    // The cost advances even if nothing could be exchanged.
    s.Spend(done, std::max<int64_t>(done, 8));
  }
  const auto best = relabels.best_sequence();
  s.Keep(relabels.best_time(), best);
  s.Polish(best, kPolish, budget);
}

}  // namespace pipeloom::planner
