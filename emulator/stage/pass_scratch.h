// Memory that a pass of one layer needs for a moment on one GPU, in addition to
// the activations that the forward keeps (layer_memory.h).
#ifndef PIPELOOM_EMULATOR_STAGE_PASS_SCRATCH_H_
#define PIPELOOM_EMULATOR_STAGE_PASS_SCRATCH_H_

#include <algorithm>
#include <optional>

#include "base/units.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

struct PassScratch {
  // The most that a forward holds whose activations nobody keeps, without the
  // layer's input: the tensors between its operators and its output.
  Bytes forward{};
  // The most that the backward holds in addition to the kept activations, in
  // the fused and in the split form: gradients in flight and gathered tokens.
  // In the split form a product's input outlives the backward, so its gradient
  // does not take its place. For a trained loss head this includes the gradient
  // of its table, which is added to the fp32 one afterwards.
  Bytes fused{};
  Bytes split{};
  bool operator==(const PassScratch&) const = default;
};

// Sums up the scratch of layers, which are added first to last, into what their
// passes hold beyond all their activations, and the forward beyond the first
// layer's input, whose place a later layer's takes. The backward goes from last
// to first; a layer's activations are there until it is through with it.
class ScratchOfLayers {
 public:
  // `input`: the layer's. `freed`: the part of `activations` that does not stay
  // for a weight gradient of its own.
  void Add(Bytes input, Bytes activations, Bytes freed,
           const PassScratch& scratch) {
    const Bytes after = activations - freed;
    if (!first_input_.has_value()) first_input_ = input;
    const Bytes wider = std::max(Bytes(0), input - *first_input_);
    forward_ = std::max(forward_, wider + scratch.forward);
    fused_ = std::max(fused_, kept_ + activations + scratch.fused);
    split_ =
        std::max(split_, kept_ + activations + scratch.split - after_ - after);
    kept_ += activations;
    after_ += after;
  }
  PassScratch Get() const {
    return {.forward = forward_,
            .fused = std::max(Bytes(0), fused_ - kept_),
            .split = std::max(Bytes(0), split_ + after_ - kept_)};
  }

 private:
  std::optional<Bytes> first_input_{};
  Bytes forward_{};
  Bytes fused_{};  // The most while the backward is in one of the layers.
  Bytes split_{};  // The same less what stays after the whole backward.
  Bytes kept_{};   // Activations of the layers so far.
  Bytes after_{};  // The part of these that stays for weight gradients.
};

// Returns the scratch of a layer's passes; `trained`: it has weight gradients;
// `expert_imbalance`: rows of its routed experts, relative to the mean. O(1)
// but for layers of many linears or convolutions.
PassScratch ScratchOf(const LayerSpec& layer, const WorkShape& shape,
                      const ParallelLayout& parallel, Precision precision,
                      bool trained, double expert_imbalance = 1);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_PASS_SCRATCH_H_
