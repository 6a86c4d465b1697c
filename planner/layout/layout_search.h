// The search for a job's parallel layout, run once before training: how many
// GPUs go to tensor, context, expert, pipeline and data parallelism, and the
// partition that goes with it.
//
//   legal layouts -> memory cut -> bound cut -> screened -> searched
//
// Legal layouts use all GPUs and split the same global batch. Screening plans
// one step with a few partitions (SearchPartition); a layout whose bound is
// over the best time so far is not screened. The best few have their partition
// searched in full, on the same terms, as has the job's own layout.
#ifndef PIPELOOM_PLANNER_LAYOUT_LAYOUT_SEARCH_H_
#define PIPELOOM_PLANNER_LAYOUT_LAYOUT_SEARCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "planner/layout/disaggregation.h"
#include "planner/layout/partition_search.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// What is given; 0: free.
struct LayoutConstraints {
  int64_t gpus = 0;  // 0: as many as the job's layout has.
  int32_t tp = 0;
  int32_t cp = 0;
  int32_t ep = 0;
  int32_t pp = 0;
  int32_t dp = 0;
  // Also with smaller tp and cp for modules other than the largest.
  bool by_module = false;
};

// The job with each layout of that many GPUs that makes sense, the job's own
// first if it is one, then by tp, cp, pp, dp, ep. training.microbatches is set
// so that a step has as many over all replicas as the job's. In each:
// - tp divides the GPUs of a node and all attention heads, cp too where it
//   exchanges heads, and tp x cp GPUs lie in a node, or fill nodes if cp is
//   given;
// - pp is no more than there are transformer layers;
// - dp divides the step's microbatches;
// - ep divides dp x cp and the experts, and is 1 without experts;
// - the job's own rules hold (ValidateJobSpec); what it says of a module's own
//   tp and cp is kept as far as it divides the layout's;
// - by_module: each layout is there with every choice of tp and cp for the
//   modules other than the one with the most parameters, the largest first: a
//   divisor of tp, and cp or 1.
// InvalidArgument: more GPUs than the cluster has, or no layout is left; it
// says what the constraints are.
absl::StatusOr<std::vector<JobSpec>> LegalLayouts(
    const JobSpec& job, const LayoutConstraints& fixed);

struct LayoutSearchOptions {
  LayoutConstraints fixed{};
  int32_t most_screened = 32;  // The most promising ones.
  int32_t finalists = 4;       // Searched in full.
  // Of the finalists; its progress is not called.
  PartitionSearchOptions search{};
  // Called by the caller's thread: how much is done of all of a round (layouts
  // screened, then partitions of the finalists) and the best time so far.
  std::function<void(int32_t done, int32_t all, Duration best)> progress = {};
};

enum class LayoutFate {
  kNoMemory,  // Weights and optimizer alone are too much, or no plan fits.
  kBound,     // Cannot be faster than the best.
  kNotTried,  // Beyond most_screened, or the search was stopped.
  kScreened,  // Planned with a few partitions.
  kSearched,
};

struct LayoutOutcome {
  ParallelLayout layout{};
  std::vector<ModuleParallelism> modules{};  // With sizes of their own.
  int32_t microbatches = 0;                  // Of a replica.
  LayoutFate fate = LayoutFate::kNotTried;
  // Work of the costliest replica, evenly over its ranks.
  Duration bound{};
  Duration step_time{};  // The last one judged; 0: none.
};

struct LayoutSearchResult {
  JobSpec job{};  // With the layout.
  PartitionSearchResult found{};
  // Of the job's own layout, searched the same; 0: it is none of those or does
  // not fit.
  Duration own_time{};
  std::vector<LayoutOutcome> layouts{};  // The fastest first.
};

// Never worse than the job's own layout on its sample steps, where that is
// legal. Steps are those of the costliest replica of a global step. Promising
// is what has a low bound with 1F1B's bubble on top. The same options give the
// same result for any number of threads. A stop request ends it with the best
// so far, which may then be one that was screened only; Cancelled: there is
// none. ResourceExhausted: no layout fits. Errors besides as LegalLayouts and
// SearchPartition. Seconds to minutes: some screened layouts, and full searches
// of the finalists.
absl::StatusOr<LayoutSearchResult> SearchLayout(
    const Strategy& strategy, const JobSpec& job, const BatchMetadata& sample,
    const PriceLayout& price, const LayoutSearchOptions& options);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_LAYOUT_SEARCH_H_
