// Shapes from a small set: sub-microbatches are padded to buckets, so that CUDA
// graphs, which are captured for fixed shapes, can launch their kernels
// (TrainingSpec::ShapeBuckets). A bucket is a number of tokens. Padding is
// priced as sequences of its own, none longer than the longest real one; it
// attends to no context and hands no tokens on.
#ifndef PIPELOOM_PARTITION_BATCHING_SHAPE_BUCKETS_H_
#define PIPELOOM_PARTITION_BATCHING_SHAPE_BUCKETS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::partition {

// Pads each sub-microbatch of a module with buckets to the smallest bucket that
// is large enough for every copy of the module in a rank. If none is, the shape
// stays as it is and the host launches its kernels. O(sub-microbatches).
void PadToBuckets(const JobSpec& job, Microbatches* microbatches);

// Returns for each module at most `count` token counts to which the
// sub-microbatches of these steps, which are not padded, can be padded with the
// fewest tokens in sum. Counts are multiples of 64 tokens for each GPU of a
// copy, so that tensor and context parallelism divide them. REQUIRES: count >=
// 1. Dynamic programming over the different sizes, at most 1,024 (above, the
// multiple doubles): milliseconds.
std::vector<TrainingSpec::ShapeBuckets> ChooseShapeBuckets(
    const JobSpec& job, absl::Span<const Microbatches> steps, int32_t count);

// Returns the padded_shapes of a plan with this graph. O(tasks log tasks).
std::vector<PaddedShape> PaddedShapesOf(const JobSpec& job,
                                        const Microbatches& microbatches,
                                        const StageGraph& graph);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_SHAPE_BUCKETS_H_
