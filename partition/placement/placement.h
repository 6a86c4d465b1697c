// Layers -> stages -> ranks, by rule.
#ifndef PIPELOOM_PARTITION_PLACEMENT_PLACEMENT_H_
#define PIPELOOM_PARTITION_PLACEMENT_PLACEMENT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::partition {

enum class LayerWeight {
  kCount,       // Every transformer layer counts 1 (Megatron's default).
  kParameters,  // By parameters in matrix products (the paper's Megatron
                // baseline): a loss head counts, an embedding is a look-up.
};

// Modules concatenated in data-flow order and cut into pp * chunks runs of
// near-equal weight (least largest run, exactly); run i goes to rank i % pp,
// segment i / pp. The embedding stays with the first layer after it, and the
// loss head with the last before it when there are fewer layers than runs;
// then there are fewer runs, and the last ranks may be empty. Whole
// microbatches, no sub-microbatches. InvalidArgument: chunks < 1.
absl::StatusOr<Partition> ConcatenatedPartition(const JobSpec& job,
                                                int32_t chunks,
                                                LayerWeight weight);

// DIP section 4.1: each module has its own segments over all ranks.
//
// Sub-microbatch sizes B_i (not for backbones, which take the microbatch
// whole): the smallest of 1, 2, 3, 4, 6, 8, 12, 16, ... instances, up to what
// a microbatch of the sample holds, whose forward pass handles at least 95 %
// of the best instances per second. training.sub_microbatch_sizes goes first; a
// module that the sample does not use takes microbatches whole.
//
// Segments K_i = floor(T_i / T_1), T_i being the module's forward time at B_i
// and T_1 the least of them. Where the paper is silent:
// - modules under 5 % of a microbatch's forward time are not looked at for
//   T_1 and have one segment, else a projector would cut all others to pieces;
// - K_i <= 4, and each stage has a layer at least: more segments make more,
//   shorter tasks, whose fixed costs and transfers eat the gain;
// - layers are split by forward and backward time (least largest stage);
// - a module with fewer layers than ranks joins the chain of its consumer's
//   first segment (or its producer's last): both are split as one, and have
//   two stages on the rank where they meet;
// - one rank: one segment a module.
//
// The job's partition rules are kept (PartitionBuilder::FeasibleRule).
//
// `sample` gives the typical sizes. InvalidArgument: it is empty or has no
// work for the model, or no cut keeps the rules. Milliseconds; called once a
// job.
absl::StatusOr<Partition> SeparatedPartition(
    const JobSpec& job, const emulator::StageCostModel& costs,
    const BatchMetadata& sample);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_PLACEMENT_PLACEMENT_H_
