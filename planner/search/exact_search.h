// Branch and bound for small problems: the best schedule there is, with proof.
//
// A depth-first search over sets of done tasks. In a state only those ready
// tasks are tried of which one must come next in some best schedule: Giffler
// and Thompson (1960), kept right where memory binds, where it may pay to leave
// a rank idle (see exact_search.cc). A state is dropped when
//  - its bound (chains and one preemptive machine a rank, from the state's own
//    times) reaches the best known;
//  - a state with the same tasks done and no time later was entered before;
//  - from its set no end within the memory limits exists.
// Microbatches that are alike start in the order of their ids.
//
// Cost: up to max_evaluations states of O(tasks + edges) each; tens of tasks as
// a rule. Memory: about 8 bytes a rank and open task and state kept.
#ifndef PIPELOOM_PLANNER_SEARCH_EXACT_SEARCH_H_
#define PIPELOOM_PLANNER_SEARCH_EXACT_SEARCH_H_

#include <cstdint>
#include <vector>

#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

// More tasks than this are never tried: proven is false, nodes 0.
inline constexpr int32_t kMaxExactTasks = 64;

struct ExactResult {
  // The best sequence of all tasks, producers first, and its step time in ns
  // (what Retimer says of it). The caller's own when nothing better exists or
  // was found; empty when the caller had none and none was found.
  std::vector<int32_t> sequence{};
  int64_t step_time = 0;  // Or `upper_bound` when there is no sequence.
  // Nothing below step_time exists. With an empty sequence: no legal schedule
  // below `upper_bound` exists.
  bool proven = false;
  int64_t nodes = 0;  // States entered.
};

// `upper_bound`: the step time of `incumbent` in ns; only better answers are
// sought. kNoLimit with an empty incumbent: any answer. The budget counts
// states. One thread; deterministic when no deadline cuts it short.
ExactResult ExactSearch(const FlatGraph& graph, int64_t upper_bound,
                        std::vector<int32_t> incumbent,
                        const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_EXACT_SEARCH_H_
