// Assignment of weighted items to groups so that the heaviest group is light:
// samples to replicas (multiway number partitioning).
#ifndef PIPELOOM_PARTITION_BATCHING_ASSIGN_LOADS_H_
#define PIPELOOM_PARTITION_BATCHING_ASSIGN_LOADS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::partition {

// Returns the group of each item, in [0, groups). Longest processing time first
// (Graham 1969: at most 4/3 - 1 / (3 groups) times the optimum), then moves and
// exchanges of two items between the heaviest group and others as long as they
// make it lighter. No group is empty if there are at least as many items as
// groups. Deterministic; ties by index. REQUIRES: groups >= 1, weights >= 0 and
// their sum < 2^62. O(n log n + improvements x n / groups), some ten
// milliseconds for 100,000 items.
std::vector<int32_t> AssignLoads(absl::Span<const int64_t> weights,
                                 int32_t groups);

// Returns the weight of each group. REQUIRES: `group` is as AssignLoads returns
// it.
std::vector<int64_t> GroupLoads(absl::Span<const int64_t> weights,
                                absl::Span<const int32_t> group,
                                int32_t groups);

// Returns the order in which microbatches of these sizes enter a pipeline that
// takes them in order, as indices: the smallest first, so that the last rank
// waits least, the others from large to small, so that the drain is short
// (DistTrain, section 5, without its gap fitting). Ties by index.
std::vector<int32_t> OrderBySize(absl::Span<const int64_t> sizes);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_ASSIGN_LOADS_H_
