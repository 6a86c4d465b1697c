// Memory choices: how each layer's activations are held between forward and
// backward.
//
// A stage pair is one stage on one sub-microbatch: its forward task and the
// backward that releases its activations. Pairs are numbered in the order of
// their forward tasks in the StageGraph: by sub-microbatch, then by the
// module's stages in data-flow order.
//
//     layer      0          1          2       3             4
//     strategy   recompute  recompute  keep    recompute     offload
//                                              norms
//     held       its input  its input  all     all but what  nothing (it is on
//                                              norms make    the host)
#ifndef PIPELOOM_IR_PLAN_MEMORY_POLICY_H_
#define PIPELOOM_IR_PLAN_MEMORY_POLICY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ir/ids.h"
#include "ir/job/job_spec.h"
#include "ir/operator_group.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"

namespace pipeloom {

using StagePairId = Id<struct StagePairTag>;

// The memory choice of one layer of a stage pair.
struct LayerMemory {
  MemoryStrategy strategy = MemoryStrategy::kKeep;
  // For kRecompute: the groups that are dropped and recomputed, while the rest
  // is kept (selective recomputation). Empty: everything but the layer's input.
  OperatorGroups groups{};

  constexpr LayerMemory() = default;
  constexpr LayerMemory(MemoryStrategy the_strategy,  // NOLINT: is one.
                        OperatorGroups the_groups = {})
      : strategy(the_strategy), groups(the_groups) {}
  constexpr bool operator==(const LayerMemory&) const = default;

  constexpr bool keeps() const { return strategy == MemoryStrategy::kKeep; }
  // Returns whether the layer is recomputed from its input.
  constexpr bool recomputes_fully() const {
    return strategy == MemoryStrategy::kRecompute && groups.empty();
  }
  // Returns whether only `groups` are recomputed.
  constexpr bool recomputes_partly() const {
    return strategy == MemoryStrategy::kRecompute && !groups.empty();
  }
  constexpr bool offloads() const {
    return strategy == MemoryStrategy::kOffload;
  }
};

// The memory choice of one stage pair.
struct MemoryChoice {
  // Indexed by layer of the stage, first to last. Empty: every layer is kept.
  std::vector<LayerMemory> layers{};
  // Number of consecutive fully recomputed layers that share a checkpoint: only
  // the input of the first one is held until the backward, which then holds all
  // their activations at once. Megatron's "uniform" with this
  // "recompute-num-layers". With at least the number of layers, the whole run
  // of them has one checkpoint.
  int32_t period = 1;
  bool operator==(const MemoryChoice&) const = default;

  bool keeps_everything() const;
  // Returns the end of the checkpoint that begins at layer `begin`: the index
  // of the first later layer that does not share it. REQUIRES: `begin` is fully
  // recomputed, and the first of its checkpoint.
  size_t CheckpointEnd(size_t begin) const;
};

// Returns the choice that recomputes every layer fully, with a checkpoint every
// `period` layers.
MemoryChoice RecomputeUniform(int32_t num_layers, int32_t period = 1);
// Returns the same choice with one checkpoint.
MemoryChoice RecomputeWhole(int32_t num_layers);
// Returns the choice that recomputes the first `count` layers fully: Megatron's
// "block".
MemoryChoice RecomputeBlock(int32_t num_layers, int32_t count);
// Returns the choice that recomputes the same groups of every layer.
MemoryChoice RecomputeGroups(int32_t num_layers, OperatorGroups groups);

// Checks the choice. Returns InvalidArgument that names the layer and the
// value: a period below 1, or groups of a layer that is not recomputed.
absl::Status ValidateMemoryChoice(const MemoryChoice& choice);

// The memory choices of all stage pairs of a step. Empty: everything is kept.
struct MemoryPolicy {
  std::vector<MemoryChoice> choices{};         // The distinct choices.
  IdVector<StagePairId, int32_t> choice_of{};  // Index into `choices`.
  bool operator==(const MemoryPolicy&) const = default;

  bool empty() const { return choice_of.empty(); }
  // Returns the choice of a pair. REQUIRES: not empty.
  const MemoryChoice& of(StagePairId pair) const {
    return choices[static_cast<size_t>(choice_of[pair])];
  }
};

// Returns the number of stage pairs of a step.
int32_t NumStagePairs(const Partition& partition,
                      const Microbatches& microbatches);

// Checks the policy. Returns InvalidArgument that names the first pair at
// fault: a choice that does not exist, that is invalid in itself, or that is
// for another number of layers than the stage has. An empty policy is valid.
// REQUIRES: partition and microbatches are of one model.
absl::Status ValidateMemoryPolicy(const MemoryPolicy& policy,
                                  const Partition& partition,
                                  const Microbatches& microbatches);

// Returns choices that recompute every layer fully, each with its own
// checkpoint.
IdVector<StageId, MemoryChoice> AllRecomputed(const Partition& partition);

// Returns the policy with the same choice for every pair of a stage. REQUIRES:
// one choice for each stage.
MemoryPolicy PolicyByStage(const IdVector<StageId, MemoryChoice>& choices,
                           const Partition& partition,
                           const Microbatches& microbatches);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_MEMORY_POLICY_H_
