// The search for a plan that is robust against machines slower than predicted:
// among many orders of the tasks, the one with the best 90th percentile of the
// step time when every duration varies and one rank is slow.
//
// Orders are made from the nominal one by tabu search (tabu_search.h) with the
// durations of a bad sample, again and again from the best order so far. All
// orders are judged on the same samples, sixteen at a time (fixed_order.h).
// Memory limits depend on the order alone and are kept.
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

// How step times are sampled. In each sample, every duration is multiplied by a
// factor of its own, normally distributed around 1 with deviation `jitter` (cut
// off at 4 deviations and at 0.1). The durations of one rank, drawn uniformly,
// are also multiplied by `slow_rank`.
struct Disturbances {
  double jitter = 0.05;
  double slow_rank = 1.1;
  int32_t samples = 64;  // Rounded up to a multiple of 16.
  uint64_t seed = 1;
};

// Step times of one order.
struct RobustTimes {
  Duration nominal{};  // Without disturbances.
  Duration p50{};
  Duration p90{};  // Nine of ten samples take no longer.
};

// Judges orders on one set of samples. Judge is const and may be called from
// several threads.
class DisturbanceJudge {
 public:
  // Keeps a reference to `graph`. Takes O(tasks x samples) time, and 8 bytes of
  // memory for each task and sample.
  DisturbanceJudge(const FlatGraph& graph, const Disturbances& disturbances);

  // Times a sequence of all tasks, producers before consumers. `worst` may be
  // null; otherwise it is set to the indices of the samples, slowest first.
  RobustTimes Judge(absl::Span<const int32_t> sequence,
                    std::vector<int32_t>* worst = nullptr) const;
  // Returns the durations of a sample in ns, indexed by task.
  std::vector<int64_t> DurationsOf(int32_t sample) const;
  int32_t num_samples() const { return num_samples_; }

 private:
  const FlatGraph* graph_;
  int32_t num_samples_;
  // Indexed by batch of FixedOrder::kLanes samples: the rows of the batch
  // (FixedOrder::ArrangeRows).
  std::vector<std::vector<double>> rows_;
};

// The result of a robust search.
struct RobustResult {
  RankOrders order{};
  RobustTimes chosen{};
  RobustTimes nominal{};  // Times of the order it began with.
  int64_t evaluations = 0;
};

// Searches from `nominal`, which must be an order of all tasks that keeps the
// limits. The result has chosen.p90 <= nominal.p90. With equal graph, order,
// seeds and max_evaluations, the result is the same for any number of threads
// if no deadline cuts it short. Returns InvalidArgument for an invalid order, a
// jitter that is not in [0, 1], a factor that is not in [1, 100], or a number
// of samples that is not in [1, 100000].
absl::StatusOr<RobustResult> RobustSearch(const StageGraph& graph,
                                          const RankOrders& nominal,
                                          const Disturbances& disturbances,
                                          uint64_t seed,
                                          const SearchBudget& budget);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_ROBUST_SEARCH_H_
