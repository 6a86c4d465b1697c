// Time and memory of stages and ranks, as StageCostModel (stage_cost.h) returns
// them.
#ifndef PIPELOOM_EMULATOR_STAGE_STAGE_COST_TYPES_H_
#define PIPELOOM_EMULATOR_STAGE_STAGE_COST_TYPES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/fingerprint.h"
#include "base/units.h"
#include "emulator/stage/made_gradients.h"
#include "emulator/stage/subgraph_cache.h"
#include "ir/plan/partition.h"

namespace pipeloom::emulator {

// The cost of a stage per GPU, with tensor, sequence and context parallelism
// applied.
struct StageCost {
  Duration forward{};
  // The forward inside a backward that recomputes: gathered weights are
  // available already, and nothing is regrouped for other modules.
  Duration forward_again{};
  // The two forms of the backward (op_graph.h). Split: the input gradient,
  // which is complete when it is handed on, and the weight gradient, 0 for a
  // frozen module.
  Duration backward{};
  Duration weight_grad{};
  // Fused: both gradients in one pass. Equal to `backward` without a weight
  // gradient.
  Duration fused{};
  // How much compute, from weight gradients of other sub-microbatches, fits
  // into `backward` and `fused` while the compute stream waits for the pass's
  // collectives.
  Duration backward_gap{};
  Duration fused_gap{};
  // The same for the forward, and compute of backwards of other microbatches. 0
  // unless the trainer runs them together (TrainingSetup::paired_forwards).
  Duration forward_gap{};
  // How much of each pass can run on the compute stream while another pass
  // waits for its collectives (emulator/stage/pass_pair.h): its time less what
  // it waits itself or, if that is more, less the host time of its launches.
  Duration forward_compute{};
  Duration backward_compute{};
  Duration fused_compute{};
  // Kept from forward until backward and weight gradient are done.
  Bytes activations{};
  // Part of `activations` that the input gradient is the last to read.
  Bytes freed_by_backward{};
  // The temporary memory of its passes. A backward of kept activations goes
  // from the last layer to the first and frees those that it is through with,
  // so that a layer's scratch counts only where it is more than was freed.
  PassScratch scratch{};
  // The stage's input, which is all that a recomputed stage keeps.
  Bytes input{};
  // Added by its first backward of a step, if gradients are not held all the
  // step long (made_gradients.h).
  MadeGradients made{};
  // Indexed by operator group; sums over the layers of the stage.
  GroupCosts groups{};
  // The stage's output tensor, which may cross to another rank.
  int64_t output_rows = 0;
  int64_t output_width = 0;
  Bytes output{};       // One GPU's share.
  Flops model_flops{};  // Forward and backward, on all GPUs of the rank.
  // Returns the time of forward and backward in the form that takes less of the
  // rank's time.
  Duration all_passes() const {
    return forward + std::min(fused, backward + weight_grad);
  }
  // Returns the least that they add to a rank's load: without the passes of
  // others that their gaps may take.
  Duration least_load() const {
    return all_passes() - std::max(backward_gap, fused_gap) - forward_gap;
  }
  bool operator==(const StageCost&) const = default;
};

// Memory of a stage's weights on one GPU throughout the step. With sharding, it
// includes the layers that are temporarily whole.
struct StageMemory {
  Bytes weights{};
  Bytes gradients{};
  Bytes optimizer{};
  bool operator==(const StageMemory&) const = default;
};

// Memory of a rank's GPU other than weights and activations.
struct RankOverhead {
  Bytes context{};    // Memory outside of the framework's allocator.
  Bytes libraries{};  // Workspaces of the product libraries.
  // A gradient of each different shape of weight in 16 bits, which fused layers
  // hand to the framework while the true one is added to the fp32 buffer.
  Bytes unused_gradients{};
  Bytes allocated() const { return libraries + unused_gradients; }
  Bytes total() const { return context + allocated(); }
  bool operator==(const RankOverhead&) const = default;
};

// Ratios of measured to priced time, by pass.
struct PassFactors {
  double forward = 1;
  double backward = 1;
  double weight_grad = 1;
  bool operator==(const PassFactors&) const = default;
};

// Counts of cache look-ups.
struct CacheCounters {
  int64_t hits = 0;
  int64_t misses = 0;
};

// Stages of one module in data-flow order, to be priced together. Those that
// cost the same at every shape share a slot. StageCostModel::Row makes it.
struct StageRow {
  std::vector<int32_t> slot_of{};  // Indexed by stage.
  std::vector<Stage> of_slot{};    // The first stage of each slot.
  // Says all that a slot's costs depend on. Indexed by slot.
  std::vector<Fingerprint> print_of_slot{};
  // Number of layers of the stages that are the first of their slots, and of
  // the others.
  int32_t layers_priced = 0;
  int32_t layers_shared = 0;
  Fingerprint fingerprint{};  // Says all that the row's costs depend on.
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_STAGE_COST_TYPES_H_
