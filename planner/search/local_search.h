// Searches by changes of one legal order alone: tasks on a longest path change
// places (planner/moves/tabu_search.h), and windows are list-scheduled anew
// (planner/moves/turns/relist_windows.h). It makes no list schedule of a whole
// step, and so is for graphs on which the list scheduler's guard against
// deadlocks finds no order in which microbatches run one after another: most
// steps whose weight gradients run in the gaps of other microbatches.
//
// Each worker tries both by turns, every second one first the other; they meet
// after each turn, and all go on from the best answer.
#ifndef PIPELOOM_PLANNER_SEARCH_LOCAL_SEARCH_H_
#define PIPELOOM_PLANNER_SEARCH_LOCAL_SEARCH_H_

#include <cstdint>

#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"
#include "planner/moves/search_state.h"

namespace pipeloom::planner {

// Makes `answer` shorter by at most budget.max_evaluations moves and schedules
// of windows, until its time is `bound` (ns) or less; returns how many were
// made, at least one a turn. The result is the same for any number of threads
// if no deadline cuts it short. An evaluation costs O(tasks), some 10 ns for
// each. REQUIRES: the sequence is topological and keeps the limits; `time` is
// its step time.
int64_t SearchLocally(const FlatGraph& graph, int64_t bound, uint64_t seed,
                      const SearchBudget& budget, Answer* answer);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_LOCAL_SEARCH_H_
