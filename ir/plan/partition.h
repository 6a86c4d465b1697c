// The place of every layer: layers -> stages -> ranks, grouped in segments.
// Fixed for a job, as weights do not move between steps.
//
//   segment 0 (encoder)    rank 0: stage 0   rank 1: stage 1   ...
//   segment 1 (backbone)   rank 0: stage 4   rank 1: stage 5   ...
//
// Stages are numbered in data-flow order: by segment, then by position in the
// segment. A segment that spans a module boundary (modules concatenated, as in
// Megatron) holds two stages on the rank where the modules meet.
#ifndef PIPELOOM_IR_PLAN_PARTITION_H_
#define PIPELOOM_IR_PLAN_PARTITION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/fingerprint.h"
#include "ir/ids.h"
#include "ir/job/model_spec.h"

namespace pipeloom {

// Consecutive layers of a module on one rank.
struct Stage {
  ModuleId module{};
  LayerId first_layer{};
  int32_t num_layers = 0;
  RankId rank{};
  SegmentId segment{};
  bool operator==(const Stage&) const = default;
};

// The stages of a job, and the sizes of its sub-microbatches.
struct Partition {
  int32_t num_ranks = 0;
  int32_t num_segments = 0;
  IdVector<StageId, Stage> stages{};
  // Number of instances of a sub-microbatch, indexed by module; 0: the whole
  // microbatch.
  IdVector<ModuleId, int64_t> sub_microbatch_instances{};
  bool operator==(const Partition&) const = default;

  // Returns the module's stages in data-flow order.
  std::vector<StageId> StagesOf(ModuleId module) const;
};

// Checks that the stages of each module cover its layers once, in order, that
// ranks and segments exist, and that stages are numbered by segment. Returns
// InvalidArgument otherwise.
absl::Status ValidatePartition(const Partition& partition,
                               const ModelSpec& model);

// Returns a fingerprint of all of the partition.
Fingerprint FingerprintOf(const Partition& partition);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_PARTITION_H_
