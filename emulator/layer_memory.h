// Bytes that one layer keeps on one GPU from forward to backward, and what it
// needs for a moment in its backward.
//
// Fused attention, no dropout, 16-bit activations, sequence parallel, as
// Megatron-Core with TransformerEngine holds them (docs/emulator_model.md has
// the list of tensors). Per token of a transformer layer (h hidden, a heads
// and k key-value heads of dimension d, f feed-forward width):
//
//   8h                     norm inputs and outputs
//   2(a + 2k)d + 2ad + 4a  Q, K, V; attention output; log-sum-exp
//   6f or 4f               gated or plain feed-forward
//
// all divided by tp and cp. After Korthikanti et al., arXiv:2205.05198.
#ifndef PIPELOOM_EMULATOR_LAYER_MEMORY_H_
#define PIPELOOM_EMULATOR_LAYER_MEMORY_H_

#include <cstdint>

#include "base/units.h"
#include "emulator/layer_weights.h"
#include "ir/microbatches.h"
#include "ir/model_spec.h"
#include "ir/parallel_layout.h"

namespace pipeloom::emulator {

struct LayerActivations {
  // Kept by a trained layer, and by a frozen one that passes the gradient on:
  // that one needs no inputs of matrix products.
  Bytes trained{};
  Bytes frozen{};
  // What a weight gradient apart from the input gradient still holds: inputs
  // of matrix products, and the gradients of their outputs.
  Bytes held_for_weight_grad{};
};
LayerActivations ActivationsOf(const LayerSpec& layer, const WorkShape& shape,
                               const ParallelLayout& parallel,
                               Precision precision = Precision::kBf16);

// The layer's input: what a recomputed stage keeps. `width`: of the layer
// before it, 0 if it is the module's first.
Bytes InputBytes(const LayerSpec& layer, const WorkShape& shape, int64_t width,
                 const ParallelLayout& parallel,
                 Precision precision = Precision::kBf16);

// Of ActivationsOf(), what the attention's core keeps for its own backward and
// makes again when it is recomputed: the log-sum-exp of a fused kernel.
Bytes AttentionCoreBytes(const LayerSpec& layer, const WorkShape& shape,
                         const ParallelLayout& parallel);

// The most that the backward of the layer holds besides what the forward kept:
// gradients on their way, gathered tokens. Of a loss head also the gradient of
// its table in 16 bit, which is added to the fp32 one after.
Bytes BackwardScratch(const LayerSpec& layer, int64_t tokens,
                      const ParallelLayout& parallel);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_LAYER_MEMORY_H_
