// What is done with activations between forward and backward, layer by layer.
//
// A stage pair is one stage on one sub-microbatch: its forward task and the
// backward that gives its activations back. Pairs are numbered as their forward
// tasks are in the StageGraph: by sub-microbatch, then by the module's stages
// in data-flow order.
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

// For one layer of a stage pair.
struct LayerMemory {
  MemoryStrategy strategy = MemoryStrategy::kKeep;
  // Of kRecompute: what is thrown away and made again, the rest is kept
  // (selective recomputation). Empty: all but the layer's input.
  OperatorGroups groups{};

  constexpr LayerMemory() = default;
  constexpr LayerMemory(MemoryStrategy the_strategy,  // NOLINT: is one.
                        OperatorGroups the_groups = {})
      : strategy(the_strategy), groups(the_groups) {}
  constexpr bool operator==(const LayerMemory&) const = default;

  constexpr bool keeps() const { return strategy == MemoryStrategy::kKeep; }
  // From the layer's input.
  constexpr bool recomputes_fully() const {
    return strategy == MemoryStrategy::kRecompute && groups.empty();
  }
  constexpr bool recomputes_partly() const {
    return strategy == MemoryStrategy::kRecompute && !groups.empty();
  }
  constexpr bool offloads() const {
    return strategy == MemoryStrategy::kOffload;
  }
};

// For one stage pair.
struct MemoryChoice {
  // By layer of the stage, first to last. Empty: every layer is kept.
  std::vector<LayerMemory> layers{};
  // Of fully recomputed layers that stand next to each other so many have one
  // checkpoint: only the first one's input is held meanwhile, and all their
  // activations at once in the backward. Megatron's "uniform" with this
  // "recompute-num-layers". At least the number of layers: one checkpoint for
  // the whole run of them.
  int32_t period = 1;
  bool operator==(const MemoryChoice&) const = default;

  bool keeps_everything() const;
  // Layer `begin` and those after it that share its checkpoint, as the index of
  // the first that does not. REQUIRES: `begin` is fully recomputed, and the
  // first of its checkpoint.
  size_t CheckpointEnd(size_t begin) const;
};

// Every layer fully, a checkpoint every `period` layers.
MemoryChoice RecomputeUniform(int32_t num_layers, int32_t period = 1);
// The same with one checkpoint.
MemoryChoice RecomputeWhole(int32_t num_layers);
// The first `count` layers fully: Megatron's "block".
MemoryChoice RecomputeBlock(int32_t num_layers, int32_t count);
// The same groups of every layer.
MemoryChoice RecomputeGroups(int32_t num_layers, OperatorGroups groups);

// InvalidArgument names the layer and the value at fault: a period below 1, or
// groups of a layer that is not recomputed.
absl::Status ValidateMemoryChoice(const MemoryChoice& choice);

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
// one that is invalid in itself, or one for another number of layers than its
// stage has. An empty policy is valid. REQUIRES: partition and microbatches are
// of one model.
absl::Status ValidateMemoryPolicy(const MemoryPolicy& policy,
                                  const Partition& partition,
                                  const Microbatches& microbatches);

// Every layer of every stage fully, each with its own checkpoint.
IdVector<StageId, MemoryChoice> AllRecomputed(const Partition& partition);

// The same choice for every pair of a stage. REQUIRES: one for each stage.
MemoryPolicy PolicyByStage(const IdVector<StageId, MemoryChoice>& choices,
                           const Partition& partition,
                           const Microbatches& microbatches);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_MEMORY_POLICY_H_
