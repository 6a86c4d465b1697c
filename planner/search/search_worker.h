// One of the independent searchers of SearchGraph, with its own random numbers,
// schedulers and best answer. It gives turns to the moves of the table
// (planner/search/move_table.h), in rounds of about equal cost, so that workers
// can meet between them:
// - The moves of the beginning, each until it has no more work.
// - From then on the others, in the turns that the table says.
// - If nothing better was found for long: the move that begins anew. Best
//   answers are kept; from then on another worker's best answer is only mixed
//   in.
// Its role (WorkerRole) decides whether it takes part in the beginning, and how
// long that is: a worker that intensifies never begins anew.
#ifndef PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_
#define PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "planner/core/search_budget.h"
#include "planner/moves/move.h"
#include "planner/moves/search_state.h"

namespace pipeloom::planner {

// A searcher. Not thread-safe.
class SearchWorker {
 public:
  // Keeps a reference to `space` and to what it points to.
  SearchWorker(const SearchSpace& space, int32_t index, uint64_t seed);

  // Returns the best step time so far in ns, and its sequence below.
  int64_t best() const { return state_.overall().time; }
  const std::vector<int32_t>& sequence() const {
    return state_.overall().sequence;
  }
  int64_t evaluations() const { return state_.evaluations(); }
  // Goes on from the best sequence of another worker, with its step time in ns.
  // REQUIRES: the sequence is legal.
  void Adopt(int64_t time, absl::Span<const int32_t> sequence);
  // Takes another worker's sequence only to mix it in at a new start. REQUIRES:
  // as Adopt.
  void Learn(int64_t time, absl::Span<const int32_t> sequence);
  // Takes over from a worker that searched the same tasks with other durations
  // or limits: its beginning is not repeated, except for its best choices.
  // REQUIRES: no Round yet.
  void Inherit(const SearchWorker& earlier);

  // Works until the round's cost is spent, `limit` more evaluations are made,
  // the bound is met or the budget says stop.
  void Round(int64_t limit, const SearchBudget& budget);

 private:
  // Gives a turn to the beginning. Returns whether it had work.
  bool Begin(const SearchBudget& budget);
  void RestartIfStalled(const SearchBudget& budget);

  SearchState state_;
  std::vector<std::unique_ptr<Move>> moves_{};  // Indexed by row of MoveTable.
  int64_t begun_ = 0;                           // Turns of the beginning.
  int64_t turn_ = 0;                            // Turns after it.
  int64_t stalled_cost_ = 0;  // Cost since the best answer last improved.
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_SEARCH_WORKER_H_
