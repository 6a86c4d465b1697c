// Leaves the best answer for a new start: the best of some choices drawn at
// random, or a list schedule by the mixed start times of two former best
// answers. A tabu search follows.
#ifndef PIPELOOM_PLANNER_MOVES_START_RESTART_H_
#define PIPELOOM_PLANNER_MOVES_START_RESTART_H_

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Has no state between its turns; SearchState keeps the former best answers.
class Restart : public Move {
 public:
  using Move::Move;
  void Run(const SearchBudget& budget) override;

 private:
  // REQUIRES: at least two elites.
  void MixElites();
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_RESTART_H_
