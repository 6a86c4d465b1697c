// Runs tabu search from the best answer, again and again.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_IMPROVE_BEST_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_IMPROVE_BEST_H_

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Has no state between its turns.
class ImproveBest : public Move {
 public:
  using Move::Move;
  void Run(const SearchBudget& budget) override;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_IMPROVE_BEST_H_
