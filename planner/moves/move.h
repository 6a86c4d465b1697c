// The interface of a move: one way in which a search worker makes better
// schedules. A move keeps its own state between its turns and shares
// SearchState with the others. planner/search/move_table.cc lists all moves
// and says when each has its turn.
#ifndef PIPELOOM_PLANNER_MOVES_MOVE_H_
#define PIPELOOM_PLANNER_MOVES_MOVE_H_

#include "planner/core/search_budget.h"
#include "planner/moves/search_state.h"

namespace pipeloom::planner {

// A move of one worker. Not thread-safe.
class Move {
 public:
  // Keeps a reference to `state`.
  explicit Move(SearchState& state) : state_(&state) {}
  virtual ~Move() = default;
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;

  // Works for one turn: usually until SearchState::RoundMayGoOn is false. Gives
  // what it finds to SearchState::Keep, and tells SearchState::Spend what each
  // evaluation costs.
  virtual void Run(const SearchBudget& budget) = 0;
  // Returns whether there is anything for it to do. A move of the beginning has
  // turns until this is false.
  virtual bool has_work() const { return true; }

  // Forgets what it derived from the best answer: there is a new start.
  virtual void OnRestart() {}
  // Learns that another worker's answer has replaced the best.
  virtual void OnAdopt() {}
  // Takes over from the same move of a worker that searched the same tasks with
  // other durations or limits. REQUIRES: no Run yet; both are of one class.
  virtual void Inherit(const Move& /*earlier*/) {}

 protected:
  SearchState& state() { return *state_; }
  const SearchState& state() const { return *state_; }

 private:
  SearchState* state_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MOVES_MOVE_H_
