// The search for a good schedule of a bare StageGraph under memory limits:
// what `pipeloom search` runs, and the core of the `pipeloom` strategy.
#ifndef PIPELOOM_PLANNER_SEARCH_SEARCH_GRAPH_H_
#define PIPELOOM_PLANNER_SEARCH_SEARCH_GRAPH_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/bounds/lower_bound.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

struct SearchResult {
  Schedule schedule{};
  // Of the step time; no schedule of this very graph, limits included, beats
  // it. Where it is from: as NamedBound's, or "exact search".
  Duration lower_bound{};
  const char* bound_source = "chain";
  int64_t evaluations = 0;
  // step_time() == lower_bound. Small problems are solved, and then the
  // optimum is the bound.
  bool proven_optimal = false;
  double gap_ratio() const {
    return lower_bound > kZero
               ? ToSeconds(schedule.step_time()) / ToSeconds(lower_bound) - 1
               : 0;
  }
};

// The result passes ValidateSchedule. Same graph, seed and max_evaluations:
// same result for any number of threads (when no deadline cuts it short).
// There is always a first legal schedule if running the microbatches one after
// another, or a search over sets of done tasks, finds one; ResourceExhausted
// says on which rank, by how much and with which task the memory does not
// suffice, and the smallest limit for which a schedule was found.
// `start`: orders known to be good, as of an earlier step or of another memory
// choice; what does not fit the graph or its limits is ignored.
absl::StatusOr<SearchResult> SearchGraph(const StageGraph& graph, uint64_t seed,
                                         const SearchBudget& budget,
                                         const RankOrders& start = {});

// The same search in parts: each Run goes on where the last one stopped.
class GraphSearch {
 public:
  // `known`: a lower bound of the step time, instead of the costly ones.
  GraphSearch(StageGraph graph, uint64_t seed,
              std::optional<NamedBound> known = std::nullopt);
  ~GraphSearch();
  const StageGraph& graph() const;

  // Before the first Run: `earlier` searched the same tasks with other
  // durations or limits. What it has tried, but for its best, is not tried
  // again.
  void Inherit(const GraphSearch& earlier);

  // The best so far, and the evaluations of this Run, which `budget` is for.
  // `start`: as SearchGraph's, of the first Run only.
  absl::StatusOr<SearchResult> Run(const SearchBudget& budget,
                                   const RankOrders& start = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_SEARCH_GRAPH_H_
