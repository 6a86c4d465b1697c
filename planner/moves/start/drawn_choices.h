// Choices of the list scheduler that are drawn at random, for new starts.
#ifndef PIPELOOM_PLANNER_MOVES_START_DRAWN_CHOICES_H_
#define PIPELOOM_PLANNER_MOVES_START_DRAWN_CHOICES_H_

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "planner/core/search_budget.h"
#include "planner/moves/order_search.h"
#include "planner/moves/search_state.h"

namespace pipeloom::planner {

// Draws an order of units in which a few light microbatches fill the pipeline,
// then the heavy ones come, and the other light ones drain it; sorted by all
// their work or by that of their first module.
std::vector<int32_t> DrawOrder(const OrderUnits& units, Random& random);

// Draws a choice with such an order, or one near one of `bases`.
OrderChoice DrawChoice(const OrderUnits& units,
                       const std::vector<Candidate>& bases, Random& random);

// Draws a choice near one of `spread` (SpreadChoices), which spreads
// microbatches over the step. REQUIRES: `spread` is not empty.
OrderChoice DrawSpread(const std::vector<OrderChoice>& spread, Random& random);

// Draws `number` choices that spread microbatches, and improves each forwards
// and backwards. REQUIRES: state.has_dominant().
void SweepDrawn(int32_t number, SearchState& state, const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_DRAWN_CHOICES_H_
