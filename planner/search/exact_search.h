// Branch and bound for small problems: finds the best schedule there is, with
// proof.
//
// A depth-first search over sets of done tasks. In each state it tries only
// those ready tasks of which one must come next in some best schedule, after
// Giffler and Thompson (1960), extended for memory limits, under which leaving
// a rank idle may pay (see exact_search.cc). A state is dropped when
// - its bound (chains and one preemptive machine for each rank, from the
//   state's own times) reaches the best known step time;
// - a state with the same tasks done and no time later was entered before; or
// - its set of done tasks is known to allow no completion within the memory
//   limits.
// Microbatches that are alike start in the order of their ids.
//
// Cost: up to max_evaluations states of O(tasks + edges) each; suitable for
// some tens of tasks. Memory: about 8 bytes for each kept state and each of its
// ranks and open tasks.
#ifndef PIPELOOM_PLANNER_SEARCH_EXACT_SEARCH_H_
#define PIPELOOM_PLANNER_SEARCH_EXACT_SEARCH_H_

#include <cstdint>
#include <vector>

#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

// Larger graphs are never tried: `proven` is then false and `nodes` 0.
inline constexpr int32_t kMaxExactTasks = 64;

// The result of an exact search.
struct ExactResult {
  // The best sequence of all tasks, producers first. It is the caller's own if
  // nothing better exists or was found; empty if the caller gave none and none
  // was found.
  std::vector<int32_t> sequence{};
  // Time of `sequence` by Retimer, in ns; `upper_bound` if it is empty.
  int64_t step_time = 0;
  // Whether the search proved that nothing below step_time exists; with an
  // empty sequence, that no legal schedule below `upper_bound` exists.
  bool proven = false;
  int64_t nodes = 0;  // Number of states entered.
};

// Searches for a schedule that is better than `incumbent`. `upper_bound` is the
// step time of `incumbent` in ns; with an empty incumbent, kNoLimit asks for
// any schedule. The budget counts states. Runs in one thread; deterministic if
// no deadline cuts it short.
ExactResult ExactSearch(const FlatGraph& graph, int64_t upper_bound,
                        std::vector<int32_t> incumbent,
                        const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_EXACT_SEARCH_H_
