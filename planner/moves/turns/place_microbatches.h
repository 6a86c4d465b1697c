// Anneals the places of microbatches in the best answer alone, cooling down
// over the round, and ends with a tabu search.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_PLACE_MICROBATCHES_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_PLACE_MICROBATCHES_H_

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Has no state between its turns.
class PlaceMicrobatches : public Move {
 public:
  using Move::Move;
  void Run(const SearchBudget& budget) override;
  bool has_work() const override { return state().places_matter(); }
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_PLACE_MICROBATCHES_H_
