// Bytes that one layer keeps on one GPU from forward to backward.
//
// Fused attention, no dropout, 16-bit activations, sequence parallel, as
// Megatron-Core with TransformerEngine holds them (docs/emulator_model.md has
// the list of tensors). Per token of a transformer layer (h hidden, a heads and
// k key-value heads of dimension d, f feed-forward width):
//
//   8h                     norm inputs and outputs
//   2(a + 2k)d + 2ad + 4a  Q, K, V; attention output; log-sum-exp
//   6f or 4f               gated or plain feed-forward
//
// all divided by tp and cp. After Korthikanti et al., arXiv:2205.05198: their
// sbh(34 + 5as/h) also has dropout masks (2sbh, and as of the 5as^2b) and the
// scores of unfused attention.
//
// The results of any group of operators (ir/operator_group.h) may be dropped
// after the forward and recomputed in the backward, each from tensors that are
// kept or were recomputed just before:
//
//   group            dropped                             recomputed from
//   norms            norm outputs                        norm inputs
//   projections      Q, K, V; what goes into activation  norm outputs (experts:
//                                                        the tokens sent there)
//   core attention   its output and log-sum-exp          Q, K, V
//   activations,     what goes into the down product     what goes into
//   MoE activations                                      the activation
//
// Norm inputs (the layer's input, the sum after attention), tokens on their way
// to experts and router scores are always kept. Bytes per token of a layer of
// Llama-3-8B (h 4096, a 32, k 8, d 128, f 14336), which keeps 139,392: norms
// 16,384, projections 69,632, core attention 8,320, activations 28,672; the
// other 16,384 are the two norm inputs.
#ifndef PIPELOOM_EMULATOR_STAGE_LAYER_MEMORY_H_
#define PIPELOOM_EMULATOR_STAGE_LAYER_MEMORY_H_

#include <array>
#include <cstdint>

#include "base/units.h"
#include "emulator/stage/layer_weights.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"
#include "ir/operator_group.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// Bytes that a layer keeps.
struct LayerActivations {
  // A part of `trained` and `frozen`.
  struct Part {
    Bytes trained{};
    Bytes frozen{};
    bool operator==(const Part&) const = default;
  };
  // Kept by a trained layer, and by a frozen one that passes the gradient on
  // and needs no inputs of matrix products.
  Bytes trained{};
  Bytes frozen{};
  // Bytes that a separate weight gradient still holds: inputs of matrix
  // products, and the gradients of their outputs.
  Bytes held_for_weight_grad{};
  // Bytes that each group can recompute, rounded down. Indexed by
  // OperatorGroup.
  std::array<Part, kNumOperatorGroups> groups{};
};
// Returns the bytes that the layer keeps on one GPU. With
// `fp8_activation_inputs`, inputs of feed-forward activations take one byte.
// Routed experts keep `expert_imbalance` times the mean, which is at least 1.
LayerActivations ActivationsOf(const LayerSpec& layer, const WorkShape& shape,
                               const ParallelLayout& parallel,
                               Precision precision = Precision::kBf16,
                               bool fp8_activation_inputs = false,
                               double expert_imbalance = 1);

// Returns the bytes that the adapters of a layer keep in 16 bits, in addition
// to those of a frozen layer: the inputs after dropout, the mask, and the
// narrow results.
Bytes AdapterBytes(const LayerSpec& layer, const WorkShape& shape,
                   const ParallelLayout& parallel, int64_t adapter_rank);

// Returns whether `setup.checkpoint_operators` applies: a transformer layer
// with dense feed-forward, without low ranks and cross-attention. The option
// changes nothing for other layers.
bool ChecksOperators(const LayerSpec& layer);

// Returns the bytes that such a layer keeps on one GPU in 16 bits: its input,
// the attention's output and log-sum-exp, and the results of the first, third,
// ... of its products Q, K, V, output, (gate,) up, down. That of a last product
// is kept only if `keep_last`: a compiler drops what no backward reads. With
// hidden width h, a and k heads of dimension d and a gated width f, that is
//
//   2h + 2ad + 2kd + 2ad + 4a + 2f (+ 2h)    bytes a token,
//
// and 2h for the reduce-scatter after the output product if tp > 1.
Bytes OperatorCheckpointBytes(const LayerSpec& layer, const WorkShape& shape,
                              const ParallelLayout& parallel, bool keep_last);

// Returns the size of the layer's input, which is all that a recomputed stage
// keeps. `width` is that of the layer before it, 0 if it is the first of the
// module.
Bytes InputBytes(const LayerSpec& layer, const WorkShape& shape, int64_t width,
                 const ParallelLayout& parallel,
                 Precision precision = Precision::kBf16);

// Returns the part of ActivationsOf() that the core of attention keeps for its
// own backward and makes again when it is recomputed: the log-sum-exp of a
// fused kernel.
Bytes AttentionCoreBytes(const LayerSpec& layer, const WorkShape& shape,
                         const ParallelLayout& parallel);

// Bytes that a layer keeps on a GPU, in addition to the activations above,
// without fused kernels or without sequence parallelism, or if what it gathers
// is kept. `held_for_weight_grad` is the part that a separate weight gradient
// still needs, `scores` that of the attention's core.
struct UnfusedBytes {
  Bytes kept{};
  Bytes scores{};
  Bytes held_for_weight_grad{};
};
UnfusedBytes UnfusedBytesOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup, bool trained);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_LAYER_MEMORY_H_
