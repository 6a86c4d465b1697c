#include "planner/moves/turns/kick_microbatches.h"

#include <cmath>
#include <cstdint>

namespace pipeloom::planner {
namespace {

// Cost of an exchange, in the unit of SearchState::kListCost.
constexpr int64_t kCost = 2;
constexpr int64_t kPolish = 60;
// Largest loss by an exchange of microbatches that is worth a tabu search, the
// temperature of accepting its result, and the distance from the best at which
// to begin from it again; in mean durations.
constexpr double kGate = 4;
constexpr double kTemperature = 0.3;
constexpr double kReset = 1;

}  // namespace

void KickMicrobatches::Run(const SearchBudget& budget) {
  SearchState& s = state();
  RelabelSearch& relabels = s.relabels();
  while (s.RoundMayGoOn(budget)) {
    if (kicked_.sequence.empty() ||
        static_cast<double>(kicked_.time - s.since_start().time) >
            kReset * s.mean_duration()) {
      kicked_ = {.time = s.since_start().time,
                 .sequence = s.since_start().sequence};
    }
    relabels.Start(kicked_.sequence);
    const int64_t time = relabels.Kick(s.random());
    s.Spend(1, kCost);
    if (static_cast<double>(time - kicked_.time) > kGate * s.mean_duration()) {
      continue;
    }
    s.Polish(relabels.sequence(), kPolish, budget);
    const TabuSearch& tabu = s.tabu();
    const auto worse = static_cast<double>(tabu.best_time() - kicked_.time);
    if (worse <= 0 ||
        s.random().Unit() <
            std::exp(-worse / (kTemperature * s.mean_duration()))) {
      kicked_.time = tabu.best_time();
      kicked_.sequence.assign(tabu.best_sequence().begin(),
                              tabu.best_sequence().end());
    }
  }
}

}  // namespace pipeloom::planner
