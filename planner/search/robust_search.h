// Plans for machines that are not as fast as predicted: of many orders of the
// tasks the one with the best 90th percentile of the step time, when every
// duration varies and one rank is slow.
//
// Orders are made from the nominal one: tabu search (tabu_search.h) with the
// durations of a bad sample, again and again from the best order so far. Each
// is judged on the same samples, sixteen at a time (fixed_order.h); memory
// limits depend on the order alone and are kept.
#ifndef PIPELOOM_PLANNER_SEARCH_ROBUST_SEARCH_H_
#define PIPELOOM_PLANNER_SEARCH_ROBUST_SEARCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/units.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/core/flat_graph.h"
#include "planner/core/search_budget.h"

namespace pipeloom::planner {

// How step times are sampled. In each sample every duration is multiplied by a
// factor of its own, normal around 1 with deviation `jitter` (cut at 4
// deviations and below 0.1), and those of one rank, each as often as another,
// by `slow_rank` too.
struct Disturbances {
  double jitter = 0.05;
  double slow_rank = 1.1;
  int32_t samples = 64;  // Rounded up to a multiple of 16.
  uint64_t seed = 1;
};

struct RobustTimes {
  Duration nominal{};  // Undisturbed.
  Duration p50{};
  Duration p90{};  // Nine of ten samples take no longer.
};

// Judges orders on one set of samples. Judge is const and may be called from
// several threads.
class DisturbanceJudge {
 public:
  // Keeps a reference to `graph`. O(tasks x samples), 8 bytes each.
  DisturbanceJudge(const FlatGraph& graph, const Disturbances& disturbances);

  // Of all tasks, producers before consumers. `worst` (may be null): the
  // samples, slowest first.
  RobustTimes Judge(absl::Span<const int32_t> sequence,
                    std::vector<int32_t>* worst = nullptr) const;
  // By task, in ns.
  std::vector<int64_t> DurationsOf(int32_t sample) const;
  int32_t num_samples() const { return num_samples_; }

 private:
  const FlatGraph* graph_;
  int32_t num_samples_;
  // By batch of FixedOrder::kLanes samples: its rows (FixedOrder::ArrangeRows).
  std::vector<std::vector<double>> rows_;
};

struct RobustResult {
  RankOrders order{};
  RobustTimes chosen{};
  RobustTimes nominal{};  // Of the order it began with.
  int64_t evaluations = 0;
};

// From `nominal`, which must be an order of all tasks that keeps the limits.
// chosen.p90 <= nominal.p90. Same graph, order, seeds and max_evaluations: same
// result for any number of threads, when no deadline cuts it short.
// InvalidArgument: an order that is none, a negative jitter, a factor below 1
// or no samples.
absl::StatusOr<RobustResult> RobustSearch(const StageGraph& graph,
                                          const RankOrders& nominal,
                                          const Disturbances& disturbances,
                                          uint64_t seed,
                                          const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_ROBUST_SEARCH_H_
