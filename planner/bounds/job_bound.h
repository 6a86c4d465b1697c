// A lower bound of a step over all partitions of its job: whatever the cut of
// layers into stages, their placement, sub-microbatches, memory choices and
// order.
#ifndef PIPELOOM_PLANNER_BOUNDS_JOB_BOUND_H_
#define PIPELOOM_PLANNER_BOUNDS_JOB_BOUND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::planner {

// Returns the larger of two times:
// - the least work of all layers on all microbatches, and the optimizer's, in
//   equal parts on all ranks;
// - the longest chain of a microbatch: through every module along the data
//   flow, its largest instance alone, forward and backward.
// Layers take the time of the fastest device; nothing is sent, reduced or
// recomputed. Of a module in a microbatch the cheaper of one slice and of one
// slice an instance counts, so that a slice between them may be cheaper still
// where an operator is faster than its neighbours of both sizes.
//
// `costs` are those of the replica. The errors are those of SplitMicrobatches.
// O(instances x layers) look-ups.
absl::StatusOr<Duration> BoundOfAnyPartition(
    const emulator::StageCostModel& costs, const partition::PackedStep& step,
    int32_t replica);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_BOUNDS_JOB_BOUND_H_
