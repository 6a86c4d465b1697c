// Leaves the best answer for a new start: the best of some choices drawn at
// random, or a list schedule by the mixed start times of two former best
// answers. A tabu search follows.
#ifndef PIPELOOM_PLANNER_MOVES_START_RESTART_H_
#define PIPELOOM_PLANNER_MOVES_START_RESTART_H_

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Has no state between its turns; SearchState keeps the former best answers.
// Has no work if microbatches do not differ.
class Restart : public Move {
 public:
  explicit Restart(SearchState& state)
      : Move(state),
        may_gain_(state.has_dominant() || state.relabels().can_move()) {}
  void Run(const SearchBudget& budget) override;
  bool has_work() const override { return may_gain_; }

 private:
  // REQUIRES: at least two elites.
  void MixElites();

  bool may_gain_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_RESTART_H_
