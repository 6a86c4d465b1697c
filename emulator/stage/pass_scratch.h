// Memory that a pass of one layer needs for a moment on one GPU, in addition to
// the activations that the forward keeps (layer_memory.h).
#ifndef PIPELOOM_EMULATOR_STAGE_PASS_SCRATCH_H_
#define PIPELOOM_EMULATOR_STAGE_PASS_SCRATCH_H_

#include <algorithm>

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
  // Raises each to that of `other` where it is more.
  void Cover(const PassScratch& other) {
    forward = std::max(forward, other.forward);
    fused = std::max(fused, other.fused);
    split = std::max(split, other.split);
  }
  bool operator==(const PassScratch&) const = default;
};

// Returns the scratch of a layer's passes; `trained`: it has weight gradients.
// O(1) but for layers of many linears or convolutions.
PassScratch ScratchOf(const LayerSpec& layer, const WorkShape& shape,
                      const ParallelLayout& parallel, Precision precision,
                      bool trained);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_PASS_SCRATCH_H_
