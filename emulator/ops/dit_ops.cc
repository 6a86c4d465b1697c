// Parts of diffusion transformers: cross-attention to a condition, and norms
// modulated by it.
#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"
#include "emulator/ops/layer_tokens.h"

namespace pipeloom::emulator {

void LayerBuilder::CrossAttention() {
  const CrossAttentionSpec& c = layer_.cross_attention;
  const double head_dim = Real(c.head_dim);
  const double heads = share(c.heads);
  const double width = heads * head_dim;
  const double context = Real(ContextTokens(layer_, shape_));
  const double pairs =
      c.context_tokens > 0
          ? whole_tokens_ * Real(c.context_tokens)
          : shape_.context_pairs / (layer_.downsample * layer_.downsample);
  NormAndResidual();
  // The output of its norm is always kept.
  ops_.again[static_cast<size_t>(OperatorGroup::kNorms)].pop_back();
  size_t begin = Mark();
  EnterProduct(hidden_);
  Gemm(tokens_, width, hidden_);
  Gemm(context, 2 * width, Real(c.context_width));
  MadeAgain(OperatorGroup::kProjections, begin);
  begin = Mark();
  FusedAttention(
      {.bytes = element_bytes_ * (2 * tokens_ * width + context * 2 * width),
       .mean_length = whole_tokens_ > 0 ? pairs / whole_tokens_ : 0,
       .head_dim = c.head_dim,
       .value_dim = c.head_dim,
       .tokens = tokens_,
       .heads = heads,
       .kv_heads = heads},
      4 * Real(c.heads) * head_dim * pairs, 0);
  MadeAgain(OperatorGroup::kCoreAttention, begin);
  Gemm(tokens_, hidden_, width);
  Leave(hidden_);
  // Finish() counts the context's products per token.
  forward_flops_ += 2 * 2 * Real(c.context_width) * Real(c.heads) * head_dim *
                    (context - whole_tokens_);
}

void LayerBuilder::Modulation() {
  const ModulationSpec& m = layer_.modulation;
  if (m.vectors == 0 || m.condition_width == 0) return;
  const double rows = Real(shape_.instances);
  keeps_precision_ = true;  // As few rows gain nothing from fewer bits.
  Gemm(rows, share(m.vectors * layer_.hidden), Real(m.condition_width));
  keeps_precision_ = false;
  forward_flops_ +=
      2 * rows * Real(m.vectors) * hidden_ * Real(m.condition_width);
}

void LayerBuilder::Modulate() {
  if (layer_.modulation.vectors == 0) return;
  // Shift and scale after the norm, the gate before the residual: each is one
  // pass over the tokens.
  const double rows = tokens_ / tp_;
  Stream(MemoryKind::kModulation, rows, hidden_, 8 * rows * hidden_,
         12 * rows * hidden_);
  NormAgain(MemoryKind::kModulation, rows, hidden_);
}

}  // namespace pipeloom::emulator
