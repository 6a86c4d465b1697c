#include "emulator/stage/pass_scratch.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/numeric.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/stage/layer_weights.h"

namespace pipeloom::emulator {
namespace {

// Bytes at 16 bit.
struct Scratch {
  double forward = 0;
  double fused = 0;
  double split = 0;
};

// `t`: tokens of one GPU after context parallelism.
Scratch OfTransformer(const LayerSpec& layer, double t,
                      const ParallelLayout& parallel, double expert_imbalance) {
  const double tp = Real(parallel.tp);
  const double h = Real(layer.hidden);
  const FfnSpec& f = layer.ffn;
  const AttentionSpec& a = layer.attention;
  // The attention's queries, keys and values, or what another mixer's
  // projection makes, and the mixer's output.
  const int64_t spread = a.kind == AttentionKind::kNone
                             ? 0
                             : (HeldKvHeads(a, parallel) - a.kv_heads) *
                                   (a.head_dim + a.value_width());
  const double projected = 2 * t / tp * Real(MixerInputs(layer) + spread);
  const double attended = 2 * t / tp * Real(MixerOutputs(layer));
  // Input and output of the feed-forward's activation function, and the tokens
  // that are sent to experts.
  const double per_row = f.gated ? 4 : 2;
  double before = per_row * Real(f.hidden) * t / tp;
  double after = 2 * Real(f.hidden) * t / tp;
  double sent = 0;
  if (f.experts > 0) {
    const double rows = t * Real(f.experts_per_token) * expert_imbalance / tp;
    before = per_row * Real(f.expert_hidden) * rows;
    after = 2 * Real(f.expert_hidden) * rows;
    // Whole on each GPU that has a part of an expert.
    sent = 2 * Real(f.row_width(layer.hidden)) * rows *
           (parallel.expert_tp == 1 ? 1 : tp);
  }
  Scratch scratch;
  // The gradient coming in; gathered where a tensor-parallel region begins.
  const double gradient = 2 * t * h / tp + (parallel.tp > 1 ? 2 * t * h : 0);
  const double inner = std::max(before, 2 * sent);
  scratch.fused = gradient + std::max(inner, projected + attended);
  scratch.split =
      gradient + std::max({inner, before + after, projected + attended});
  // The sum after attention, and the norm's output or the block's.
  const double row = 2 * t * h / tp;
  scratch.forward =
      row + std::max({row + projected, projected + attended, attended + row,
                      row + sent + before, before + after, after + sent + row});
  return scratch;
}

}  // namespace

PassScratch ScratchOf(const LayerSpec& layer, const WorkShape& shape,
                      const ParallelLayout& parallel, Precision precision,
                      bool trained, double expert_imbalance) {
  const double tp = Real(parallel.tp);
  const double t = Real(LayerTokens(layer, shape)) / Real(parallel.cp);
  const double h = Real(layer.hidden);
  Scratch scratch;
  switch (layer.kind) {
    case LayerKind::kTransformer:
      scratch = OfTransformer(layer, t, parallel, expert_imbalance);
      break;
    case LayerKind::kLossHead:
      // The kept input gathered, its gradient, and the table's.
      scratch.fused =
          (parallel.tp > 1 ? 2 * t * h : 0) + 2 * t * h +
          (trained ? 2 * Real(CeilDiv(layer.vocab, parallel.tp)) * h : 0);
      scratch.split = scratch.fused;
      scratch.forward = 2 * t * h + 2 * t * Real(layer.vocab) / tp;
      break;
    case LayerKind::kEmbedding:
      scratch.fused = scratch.split = scratch.forward = 2 * t * h / tp;
      break;
    case LayerKind::kLinears:
      for (size_t i = 0; i < layer.linears.size(); ++i) {
        const double out = 2 * t * Real(layer.linears[i].out) / tp;
        const double in = i == 0 ? 0 : 2 * t * Real(layer.linears[i].in) / tp;
        // Between two products, the activation function's gradients.
        scratch.fused = std::max(scratch.fused, out + in);
        scratch.forward = std::max(scratch.forward, out + in);
      }
      scratch.split = scratch.fused;
      break;
    case LayerKind::kConvolutions:
      for (const ConvolutionSpec& c : layer.convolutions) {
        const double positions = t * c.scale * c.scale / tp;
        const double both = positions * 2 * Real(c.in + c.out);
        scratch.fused = std::max(scratch.fused, both);
      }
      scratch.split = scratch.forward = scratch.fused;
      break;
    case LayerKind::kFixedWork:
      break;  // Its activations were measured with all it needs.
  }
  const double width = precision == Precision::kFp32 ? 2 : 1;
  const auto bytes = [&](double at_16_bit) {
    return Bytes(static_cast<int64_t>(std::ceil(width * at_16_bit)));
  };
  return {.forward = bytes(scratch.forward),
          .fused = bytes(scratch.fused),
          .split = bytes(trained ? scratch.split : scratch.fused)};
}

}  // namespace pipeloom::emulator
