// Anneals the sequence of tasks itself (planner/moves/sequence_search.h). It
// cools down over a cycle of turns, then begins at the best answer again.
#ifndef PIPELOOM_PLANNER_MOVES_TURNS_ANNEAL_SEQUENCE_H_
#define PIPELOOM_PLANNER_MOVES_TURNS_ANNEAL_SEQUENCE_H_

#include <cstdint>

#include "planner/moves/move.h"
#include "planner/moves/sequence_search.h"

namespace pipeloom::planner {

// Keeps its sequence and its temperature from turn to turn.
class AnnealSequence : public Move {
 public:
  explicit AnnealSequence(SearchState& state)
      : Move(state), sequences_(state.graph()) {}
  void Run(const SearchBudget& budget) override;
  void OnRestart() override { turn_ = 0; }
  void OnAdopt() override { turn_ = 0; }

 private:
  SequenceSearch sequences_;
  int64_t turn_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_TURNS_ANNEAL_SEQUENCE_H_
