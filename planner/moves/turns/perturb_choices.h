// Anneals the choices of the list scheduler: changes one at random, and follows
// each result near the best by a short tabu search. An evaluation is a list
// schedule.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_PERTURB_CHOICES_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_PERTURB_CHOICES_H_

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Begins at the best choice that GoodChoices has, and leaves a better one in
// GoodChoices::home.
class PerturbChoices : public Move {
 public:
  using Move::Move;
  void Run(const SearchBudget& budget) override;
  bool has_work() const override;
  void OnRestart() override { current_ = {}; }

 private:
  Candidate current_{};  // The choice being changed.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_PERTURB_CHOICES_H_
