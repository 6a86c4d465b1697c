// Which partitions the search for a job's partition
// (planner/layout/partition_search.h) judges again, and which it takes.
#ifndef PIPELOOM_PLANNER_LAYOUT_FINALISTS_H_
#define PIPELOOM_PLANNER_LAYOUT_FINALISTS_H_

#include <cstddef>
#include <vector>

#include "planner/layout/partition_moves.h"
#include "planner/step/sample_steps.h"

namespace pipeloom::planner {

// Returns whether `a` is the better partition: more steps fit, then less time.
bool IsBetterPartition(const PartitionCandidate& a,
                       const PartitionCandidate& b);

// Returns whether `a` is better by more than the standard error of the mean
// difference over the steps that both fit. A short search's times vary by
// percents from step to step, so a smaller difference may be chance. One
// standard error was chosen over two, which refused partitions that proved 8 %
// faster on other steps (docs/evaluation/partition.md).
bool IsSurelyBetterPartition(const PartitionCandidate& a,
                             const PartitionCandidate& b,
                             const std::vector<WeighedStep>& steps);

// Returns the indices of the partitions that fit any step, the best first.
std::vector<size_t> BestPartitions(
    const std::vector<PartitionCandidate>& tried);

// Returns the first partition and the `most` best others, at most three of one
// origin: the best on few steps are often one partition with layers moved, and
// fit these steps alone. REQUIRES: `tried` is not empty.
std::vector<PartitionCandidate> Finalists(
    const std::vector<PartitionCandidate>& tried, size_t most);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LAYOUT_FINALISTS_H_
