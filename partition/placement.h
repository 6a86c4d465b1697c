// Layers -> stages -> ranks, by rule.
#ifndef PIPELOOM_PARTITION_PLACEMENT_H_
#define PIPELOOM_PARTITION_PLACEMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "emulator/stage_cost.h"
#include "ir/batch_metadata.h"
#include "ir/job_spec.h"
#include "ir/partition.h"

namespace pipeloom::partition {

enum class LayerWeight {
  kCount,       // Every transformer layer counts 1 (Megatron's default).
  kParameters,  // By parameter count (the paper's Megatron baseline).
};

// Modules concatenated in data-flow order and cut into pp * chunks runs of
// near-equal weight (least largest run, exactly); run i goes to rank i % pp,
// segment i / pp. The embedding stays with the first layer after it and the
// loss head with the last before it when there are fewer layers than runs.
// Whole microbatches, no sub-microbatches.
absl::StatusOr<Partition> ConcatenatedPartition(const JobSpec& job,
                                                int32_t chunks,
                                                LayerWeight weight);

// DIP section 4.1: each module has its own segments over all ranks. Segment
// counts K_i = floor(T_i / T_1) from the modules' times at their
// sub-microbatch sizes B_i, where B_i is the smallest with at least 95 % of
// the best efficiency; layers split evenly by time (least largest stage). A
// module with fewer layers than ranks joins its consumer's first segment (or
// its producer's last) as an extra stage there. `sample` gives the typical
// sizes; it must not be empty.
absl::StatusOr<Partition> SeparatedPartition(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& sample);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_H_
