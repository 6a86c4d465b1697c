// Chooses which microbatches go first and last, which fill and drain the
// pipeline: from each of the best choices in turn, exchanges those at both
// ends, then runs tabu search, also with the next best microbatches in the
// first place.
#ifndef PIPELOOM_PLANNER_MOVES_START_EXCHANGE_ENDS_H_
#define PIPELOOM_PLANNER_MOVES_START_EXCHANGE_ENDS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Takes one of GoodChoices::bases a turn and leaves it improved. Has no work if
// all units take equal time, as their order does not matter then.
class ExchangeEnds : public Move {
 public:
  explicit ExchangeEnds(SearchState& state);
  void Run(const SearchBudget& budget) override;
  bool has_work() const override {
    return may_gain_ && next_base_ < state().choices().bases.size();
  }
  void Inherit(const Move& earlier) override;

 private:
  // Returns the microbatches that may come to an end, by ascending load.
  std::vector<int32_t> Microbatches() const;
  // Returns the choice with a microbatch behind (or, if `front`, ahead of) the
  // units of `place` others.
  OrderChoice MovedToEnd(const OrderChoice& from, int32_t microbatch,
                         int32_t place, bool front) const;
  void Exchange(Candidate* base, const SearchBudget& budget);

  bool may_gain_;
  size_t next_base_ = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_EXCHANGE_ENDS_H_
