#include "planner/moves/turns/anneal_sequence.h"

#include <algorithm>
#include <cstdint>

namespace pipeloom::planner {
namespace {

constexpr int64_t kCycle = 12;        // Turns from one start to the next.
constexpr double kTemperature = 0.3;  // At first; in mean durations.
// Tries between two looks at the budget.
constexpr int64_t kTries = 25;

}  // namespace

void AnnealSequence::Run(const SearchBudget& budget) {
  SearchState& s = state();
  if (turn_ % kCycle == 0) sequences_.Start(s.since_start().sequence);
  const double left =
      1 - static_cast<double>(turn_ % kCycle) / static_cast<double>(kCycle);
  ++turn_;
  const double temperature = kTemperature * s.mean_duration() * left * left;
  while (s.RoundMayGoOn(budget)) {
    const int64_t done =
        sequences_.Run(std::min(kTries, s.evaluations_left()), temperature,
                       s.space().bound, s.random());
    // The cost advances even if nothing could be moved.
    s.Spend(done, std::max<int64_t>(done, 8));
    s.Keep(sequences_.best_time(), sequences_.best_sequence());
  }
}

}  // namespace pipeloom::planner
