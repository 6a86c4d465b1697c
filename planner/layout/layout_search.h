// The search for a job's parallel layout, run once before training: how many
// GPUs go to tensor, context, expert, pipeline and data parallelism, and the
// partition that goes with it.
//
//   legal layouts -> memory cut -> bound cut -> screened -> searched
//
// Legal layouts use all GPUs and split the same global batch. Screening plans
// one step with a few partitions (SearchPartition); a layout whose bound is
// over the best time so far is not screened. The best few, and the job's own
// layout, have their partition searched in full on equal terms.
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

// Sizes that are given; 0 if free.
struct LayoutConstraints {  // 0: as many as the job's layout has.
  int64_t gpus = 0;         // 0: as many as the job's layout has.
  int32_t tp = 0;
  int32_t cp = 0;
  int32_t ep = 0;
  int32_t pp = 0;
  int32_t dp = 0;
  // Whether to try smaller tp and cp for modules other than the largest, too.
  bool by_module = false;
};

// Returns the job with each sensible layout of that many GPUs: the job's own
// first if it is one of them, then by tp, cp, pp, dp, ep. training.microbatches
// is set so that a step has as many over all replicas as the job's. In each
// layout:
// - tp divides the GPUs of a node and all attention heads; if context
//   parallelism exchanges heads, tp x cp divides the heads too. tp x cp GPUs
//   lie in a node, or fill nodes if cp is given.
// - pp is at most the number of transformer layers.
// - dp divides the step's microbatches.
// - ep divides dp x cp and the experts, and is 1 without experts.
// - The job's own rules hold (ValidateJobSpec); its tp and cp of single modules
//   are kept as far as they divide the layout's.
// - With by_module, each layout comes with every choice of tp and cp for the
//   modules other than the one with the most parameters: a divisor of tp, and
//   cp or 1. The largest sizes come first.
// Returns InvalidArgument if there are more GPUs than the cluster has, or if no
// layout is left; the message says what the constraints are.
absl::StatusOr<std::vector<JobSpec>> LegalLayouts(
    const JobSpec& job, const LayoutConstraints& fixed);

// Limits of the search.
struct LayoutSearchOptions {
  LayoutConstraints fixed{};
  // Number of layouts screened, the most promising ones.
  int32_t most_screened = 32;
  // Number of layouts searched in full. 0: the answer is the fastest of those
  // screened, which takes a tenth of the time.
  int32_t finalists = 4;
  // Options for the finalists; its `progress` is not called.
  PartitionSearchOptions search{};
  // Called by the caller's thread: the work done so far and the work of the
  // whole round (layouts screened, then partitions of the finalists), and the
  // best time so far.
  std::function<void(int32_t done, int32_t all, Duration best)> progress = {};
};

// How far a layout came in the search.
enum class LayoutFate {
  kNoMemory,  // Weights and optimizer alone take too much, or no plan fits.
  kBound,     // Cannot be faster than the best.
  kNotTried,  // Beyond most_screened, or the search was stopped.
  kScreened,  // Planned with a few partitions.
  kSearched,  // Partition searched in full.
};

// A layout with its result.
struct LayoutOutcome {
  ParallelLayout layout{};
  std::vector<ModuleParallelism> modules{};  // Modules with sizes of their own.
  int32_t microbatches = 0;                  // Microbatches of a replica.
  LayoutFate fate = LayoutFate::kNotTried;
  // Work of the costliest replica, spread evenly over its ranks.
  Duration bound{};
  Duration step_time{};  // The last time judged; 0 if none.
};

// The best layout and the results of all.
struct LayoutSearchResult {
  JobSpec job{};  // The job with the best layout.
  PartitionSearchResult found{};
  // Step time of the job's own layout, searched in the same way as the best; 0
  // if it was not or does not fit.
  Duration own_time{};
  std::vector<LayoutOutcome> layouts{};  // The fastest first.
};

// Searches for a layout. The result is never worse than the job's own layout on
// its sample steps, if that is legal. Steps are those of the costliest replica
// of a global step. The most promising layouts are those with the lowest bound
// plus 1F1B's bubble. Equal options give equal results for any number of
// threads.
//
// A stop request ends the search with the best layout so far, which may then be
// one that was only screened; Cancelled if there is none. Returns
// ResourceExhausted if no layout fits; other errors are those of LegalLayouts
// and SearchPartition. Takes seconds to minutes: some screened layouts, and
// full searches of the finalists.
absl::StatusOr<LayoutSearchResult> SearchLayout(
    const Strategy& strategy, const JobSpec& job, const BatchMetadata& sample,
    const PriceLayout& price, const LayoutSearchOptions& options);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_LAYOUT_SEARCH_H_
