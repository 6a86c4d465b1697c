// The search for a good schedule of a bare StageGraph under memory limits: the
// work of `pipeloom search`, and the core of the `pipeloom` strategy.
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

// A schedule with a bound of its step time.
struct SearchResult {
  Schedule schedule{};
  // No schedule of this graph within its limits has a shorter step time.
  Duration lower_bound{};
  // NamedBound::source, or "exact search".
  const char* bound_source = "chain";
  int64_t evaluations = 0;
  // step_time() == lower_bound. Small problems are solved exactly; their bound
  // is the optimum.
  bool proven_optimal = false;
  // Returns the step time over the bound, less one; 0 without a bound.
  double gap_ratio() const {
    return lower_bound > kZero
               ? ToSeconds(schedule.step_time()) / ToSeconds(lower_bound) - 1
               : 0;
  }
};

// Searches for a schedule. The result passes ValidateSchedule. With equal
// graph, seed, max_evaluations and workers, the result is the same for any
// number of threads if no deadline cuts it short. InvalidArgument: the number
// of workers is not in [1, kMostWorkers].
//
// A first legal schedule is found whenever running the microbatches one after
// another, or a search over sets of done tasks, gives one. Otherwise returns
// ResourceExhausted; the message says on which rank, by how much and at which
// task memory is short, and the smallest limit for which a schedule was found.
//
// `start`: orders known to be good, such as those of an earlier step or of
// another memory choice; ignored if they do not fit the graph or its limits.
absl::StatusOr<SearchResult> SearchGraph(const StageGraph& graph, uint64_t seed,
                                         const SearchBudget& budget,
                                         const RankOrders& start = {});

// The same search in parts: each Run goes on where the last one stopped.
class GraphSearch {
 public:
  // Prepares a search. `known` is a lower bound of the step time, used instead
  // of computing the costly ones.
  GraphSearch(StageGraph graph, uint64_t seed,
              std::optional<NamedBound> known = std::nullopt);
  ~GraphSearch();
  const StageGraph& graph() const;

  // Takes over from `earlier`, which searched the same tasks with other
  // durations or limits: what it has tried, except for its best choices, is not
  // tried again. Call before the first Run. REQUIRES: `earlier` lives until
  // that Run ends.
  void Inherit(const GraphSearch& earlier);

  // Spends `budget` and returns the best schedule so far, with the evaluations
  // of this Run. `start`: as SearchGraph's; used by the first Run only. The
  // number of workers is that of the first Run.
  absl::StatusOr<SearchResult> Run(const SearchBudget& budget,
                                   const RankOrders& start = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_SEARCH_GRAPH_H_
