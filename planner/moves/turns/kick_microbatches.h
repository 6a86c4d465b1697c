// Exchanges the places of some microbatches in a good answer at random. Each
// promising exchange is followed by a short tabu search, which is accepted or
// not as in annealing.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_KICK_MICROBATCHES_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_KICK_MICROBATCHES_H_

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Begins at the best answer, and again whenever it is too far from it.
class KickMicrobatches : public Move {
 public:
  using Move::Move;
  void Run(const SearchBudget& budget) override;
  bool has_work() const override { return state().places_matter(); }
  void OnRestart() override { kicked_.sequence.clear(); }

 private:
  Answer kicked_{};  // The sequence being disturbed.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_KICK_MICROBATCHES_H_
