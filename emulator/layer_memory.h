// Bytes that one layer keeps on one GPU: activations from forward to backward,
// and weights with their training state all step long.
//
// Fused attention, no dropout, 16-bit activations, sequence parallel. Per
// token of a transformer layer (h hidden, a heads and k key-value heads of
// dimension d, f feed-forward width):
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
                               const ParallelLayout& parallel);

// The layer's input: what a recomputed stage keeps. `width`: of the layer
// before it, 0 if it is the module's first.
Bytes InputBytes(const LayerSpec& layer, const WorkShape& shape, int64_t width,
                 const ParallelLayout& parallel);

// Parameters that one GPU holds: matrices by tp, experts by tp and ep, vectors
// whole.
struct ShardedParameters {
  int64_t dense = 0;
  int64_t experts = 0;
};
ShardedParameters ParametersOnGpu(const LayerSpec& layer,
                                  const ParallelLayout& parallel);

// GPUs that hold the same part of the weights.
int64_t DenseReplicas(const ParallelLayout& parallel);
int64_t ExpertReplicas(const ParallelLayout& parallel);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_LAYER_MEMORY_H_
