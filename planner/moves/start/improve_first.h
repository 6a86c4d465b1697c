// Improves the first answer before all else. For steps with a dominant
// microbatch: forwards and backwards, then so the worker's share of the choices
// that spread microbatches over the step, and some choices drawn at random. On
// graphs that are not large (SearchState::is_large, is_large_and_limited), and
// if the first answer is known to be good, a tabu search follows.
#ifndef PIPELOOM_PLANNER_MOVES_START_IMPROVE_FIRST_H_
#define PIPELOOM_PLANNER_MOVES_START_IMPROVE_FIRST_H_

#include <cstddef>
#include <cstdint>

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Goes on where it stopped if the budget cuts it short.
class ImproveFirst : public Move {
 public:
  explicit ImproveFirst(SearchState& state)
      : Move(state),
        next_spread_(state.role() == WorkerRole::kConstruct
                         ? state.first_share()
                         : state.space().spread->size()) {}
  void Run(const SearchBudget& budget) override;
  bool has_work() const override { return !done_; }
  void Inherit(const Move& earlier) override;

 private:
  void SweepSpreads(const SearchBudget& budget);

  bool first_swept_ = false;
  size_t next_spread_;
  int32_t spreads_drawn_ = 0;
  bool done_ = false;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_IMPROVE_FIRST_H_
