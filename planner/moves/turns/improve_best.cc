#include "planner/moves/turns/improve_best.h"

#include <cstdint>
#include <vector>

namespace pipeloom::planner {

void ImproveBest::Run(const SearchBudget& budget) {
  SearchState& s = state();
  while (s.RoundMayGoOn(budget)) {
    const std::vector<int32_t> start = s.since_start().sequence;
    const int64_t before = s.evaluations();
    s.Polish(start, SearchState::kRoundCost / SearchState::kTabuCost, budget);
    // Nothing can be moved.
    if (s.evaluations() - before < SearchState::kSteps) return;
  }
}

}  // namespace pipeloom::planner
