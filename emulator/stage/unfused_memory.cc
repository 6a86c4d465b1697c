#include "emulator/stage/unfused_memory.h"

#include "base/numeric.h"
#include "emulator/ops/layer_tokens.h"

namespace pipeloom::emulator {
namespace {

// Bytes per element of the score matrix, 16 bits: the results of softmax and
// dropout, and the mask.
constexpr double kScoreKept = 2 + 2 + 1;

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
    scores = kScoreKept * heads * shape.squared_tokens / parallel.cp;
  }
  if (!setup.sequence_parallel && parallel.tp > 1) {
    // Inputs and, where weights are trained, outputs of both blocks' norms;
    // masks of dropout.
    const double elements = Real(LayerTokens(layer, shape)) *
                            Real(layer.hidden) / parallel.cp *
                            (1 - 1.0 / parallel.tp);
    kept += (layer.dropout ? 6 : 4) * elements;
    if (trained) held += 4 * elements;
  }
  bytes.held_for_weight_grad = Bytes(static_cast<int64_t>(held));
  bytes.scores = Bytes(static_cast<int64_t>(scores));
  bytes.kept = bytes.scores + Bytes(static_cast<int64_t>(kept)) +
               bytes.held_for_weight_grad;
  return bytes;
}

}  // namespace pipeloom::emulator
