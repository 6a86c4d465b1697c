// Tries the worker's share of the portfolio of list-scheduling choices
// (planner/search/order_portfolio.h), after the best choices of an earlier
// search if there was one.
#ifndef PIPELOOM_PLANNER_MOVES_START_TRY_PORTFOLIO_H_
#define PIPELOOM_PLANNER_MOVES_START_TRY_PORTFOLIO_H_

#include <cstddef>
#include <vector>

#include "planner/moves/move.h"

namespace pipeloom::planner {

// Leaves the best choices in GoodChoices.
class TryPortfolio : public Move {
 public:
  explicit TryPortfolio(SearchState& state)
      : Move(state),
        next_(state.role() == WorkerRole::kConstruct
                  ? state.first_share()
                  : state.space().portfolio->size()) {}
  void Run(const SearchBudget& budget) override;
  bool has_work() const override {
    return !inherited_.empty() || next_ < state().space().portfolio->size();
  }
  void Inherit(const Move& earlier) override;

 private:
  void Try(const OrderChoice& choice);

  size_t next_;
  // Whether a choice became the best that was not improved yet.
  bool found_better_ = false;
  std::vector<OrderChoice> inherited_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_START_TRY_PORTFOLIO_H_
