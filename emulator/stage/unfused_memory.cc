#include "emulator/stage/unfused_memory.h"

#include "base/numeric.h"
#include "emulator/framework/score_kernels.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {
namespace {

// Returns what a layer keeps whose activation and rotation are operators of
// PyTorch: the activated gate, which is multiplied by the other half; rotated
// queries and keys, as values are a view of the product that made all three.
// Plain PyTorch has a product for each and frees queries and keys.
double OperatorBytes(const LayerSpec& layer, const TrainingSetup& setup,
                     double tokens, const ParallelLayout& parallel) {
  const AttentionSpec& a = layer.attention;
  double width = 0;
  if (layer.ffn.gated && layer.ffn.experts == 0) {
    width += Real(layer.ffn.hidden);
  }
  if (IsMegatron(setup) && a.kind != AttentionKind::kNone &&
      a.query_rank == 0 && a.kv_rank == 0) {
    width += Real((a.heads + HeldKvHeads(a, parallel)) * a.head_dim);
  }
  return 2 * tokens * width / parallel.tp;
}

// Returns 1, or 0.5 for a layer of one block.
double ShareOfTwoBlocks(const LayerSpec& layer) {
  return BlocksOf(layer) < 2 ? 0.5 : 1;
}

}  // namespace

UnfusedBytes UnfusedBytesOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup, bool trained) {
  UnfusedBytes bytes;
  if (layer.kind != LayerKind::kTransformer) return bytes;
  double scores = 0;
  double kept = 0;
  double held = 0;
  if (setup.attention == AttentionKernel::kUnfused &&
      layer.attention.kind != AttentionKind::kNone &&
      !setup.recompute_attention) {
    const double heads =
        Real(CeilDiv(layer.attention.heads, int64_t{parallel.tp}));
    scores = ScoreKernelsOf(layer, shape, parallel, setup).kept_bytes * heads *
             shape.squared_tokens / parallel.cp;
  }
  if (!setup.sequence_parallel && parallel.tp > 1) {
    // Inputs and, where weights are trained, outputs of both blocks' norms;
    // masks of dropout.
    const double elements = Real(LayerTokens(layer, shape)) *
                            Real(layer.hidden) / parallel.cp *
                            (1 - 1.0 / parallel.tp) * ShareOfTwoBlocks(layer);
    kept += (layer.dropout ? 6 : 4) * elements;
    if (trained) held += 4 * elements;
  }
  const double tokens = Real(LayerTokens(layer, shape)) / parallel.cp;
  if (setup.keeps_gathered && setup.sequence_parallel && trained) {
    // The input of the first product of both blocks.
    held += 4 * tokens * Real(layer.hidden) * (1 - 1.0 / parallel.tp) *
            ShareOfTwoBlocks(layer);
  }
  if (setup.eager_pointwise &&
      (setup.keeps_gathered || setup.framework == Framework::kPyTorch)) {
    kept += OperatorBytes(layer, setup, tokens, parallel);
  }
  bytes.held_for_weight_grad = Bytes(static_cast<int64_t>(held));
  bytes.scores = Bytes(static_cast<int64_t>(scores));
  bytes.kept = bytes.scores + Bytes(static_cast<int64_t>(kept)) +
               bytes.held_for_weight_grad;
  return bytes;
}

}  // namespace pipeloom::emulator
