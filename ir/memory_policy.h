// What is done with activations between forward and backward, layer by layer.
//
// A stage pair is one stage on one sub-microbatch: its forward task and the
// backward that gives its activations back. Pairs are numbered as their forward
// tasks are in the StageGraph: by sub-microbatch, then by the module's stages
// in data-flow order.
//
//     layer      0          1          2       3
//     strategy   recompute  recompute  keep    offload
//     held       its input  its input  all     nothing (on the host)
#ifndef PIPELOOM_IR_MEMORY_POLICY_H_
#define PIPELOOM_IR_MEMORY_POLICY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ir/ids.h"
#include "ir/job_spec.h"
#include "ir/microbatches.h"
#include "ir/partition.h"

namespace pipeloom {

using StagePairId = Id<struct StagePairTag>;

// For one stage pair.
struct MemoryChoice {
  // By layer of the stage, first to last. Empty: every layer is kept.
  std::vector<MemoryStrategy> layers{};
  // Recomputed layers that stand next to each other are computed again in one
  // go: only the first one's input is held meanwhile, but all their
  // activations at once in the backward. Else each is computed again alone.
  bool grouped = false;
  bool operator==(const MemoryChoice&) const = default;

  bool keeps_everything() const;
};

// `num_layers` recomputed layers in one group: what RecomputeChoice means by
// a recomputed stage.
MemoryChoice RecomputeWhole(int32_t num_layers);

// Empty: everything is kept.
struct MemoryPolicy {
  std::vector<MemoryChoice> choices{};         // The different ones.
  IdVector<StagePairId, int32_t> choice_of{};  // Index into `choices`.
  bool operator==(const MemoryPolicy&) const = default;

  bool empty() const { return choice_of.empty(); }
  // REQUIRES: not empty.
  const MemoryChoice& of(StagePairId pair) const {
    return choices[static_cast<size_t>(choice_of[pair])];
  }
};

int32_t NumStagePairs(const Partition& partition,
                      const Microbatches& microbatches);

// InvalidArgument names the first pair at fault: a choice that does not exist,
// or one for another number of layers than its stage has. An empty policy is
// valid. REQUIRES: partition and microbatches are of one model.
absl::Status ValidateMemoryPolicy(const MemoryPolicy& policy,
                                  const Partition& partition,
                                  const Microbatches& microbatches);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_MEMORY_POLICY_H_
