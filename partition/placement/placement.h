// Partitions by rule: layers -> stages -> ranks.
#ifndef PIPELOOM_PARTITION_PLACEMENT_PLACEMENT_H_
#define PIPELOOM_PARTITION_PLACEMENT_PLACEMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::partition {

// The measure by which layers are balanced.
enum class LayerWeight {
  kCount,  // Every transformer layer counts 1 (Megatron's default).
  // Parameters in matrix products (the paper's Megatron baseline): a loss head
  // counts, an embedding is a look-up.
  kParameters,
};

// Returns the partition with the modules concatenated in data-flow order and
// cut into pp * chunks runs of nearly equal weight (exactly minimal largest
// run); run i is on rank i % pp, in segment i / pp. The embedding stays with
// the first layer after it, and the loss head with the last before it if there
// are fewer layers than runs; then there are fewer runs, and the last ranks may
// be empty. Whole microbatches, no sub-microbatches. InvalidArgument: chunks <
// 1.
absl::StatusOr<Partition> ConcatenatedPartition(const JobSpec& job,
                                                int32_t chunks,
                                                LayerWeight weight);

// Returns the partition of DIP section 4.1: each module has its own segments
// over all ranks.
//
// Sub-microbatch sizes B_i (not for backbones, which take the whole
// microbatch): the smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... instances, up to
// those of a microbatch of the sample, whose forward pass handles at least 95 %
// of the best instances per second. training.sub_microbatch_sizes has
// precedence; a module that the sample does not use takes whole microbatches.
//
// Segments K_i = floor(T_i / T_1), where T_i is the module's forward time at
// B_i and T_1 the least of them. Choices that the paper leaves open:
// - modules under 5 % of a microbatch's forward time do not count for T_1 and
//   have one segment, else a projector would cut all others into pieces;
// - K_i <= 4, and each stage has at least one layer: more segments make more,
//   shorter tasks, whose fixed costs and transfers exceed the gain;
// - layers are split by forward and backward time (minimal largest stage);
// - a module with fewer layers than ranks joins the chain of its consumer's
//   first segment (or its producer's last): both are split as one, and have two
//   stages on the rank where they meet;
// - with one rank, each module has one segment.
//
// The job's partition rules are kept (PartitionBuilder::FeasibleRule).
//
// `sample` gives the typical sizes. InvalidArgument: it is empty or has no work
// for the model, or no cut keeps the rules. Milliseconds; called once per job.
absl::StatusOr<Partition> SeparatedPartition(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& sample);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_PLACEMENT_H_
