#include "emulator/ops/layer_fingerprint.h"

#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TEST(LayerFingerprint, EveryFieldButTheNameTellsLayersApart) {
  LayerSpec base = Llama3Block();
  LayerSpec renamed = base;
  renamed.name = "other";
  EXPECT_EQ(FingerprintOf(base), FingerprintOf(renamed));
  const auto differs = [&](auto change) {
    LayerSpec changed = base;
    change(changed);
    EXPECT_NE(FingerprintOf(base), FingerprintOf(changed));
  };
  differs([](LayerSpec& l) { l.kind = LayerKind::kFixedWork; });
  differs([](LayerSpec& l) { ++l.hidden; });
  differs([](LayerSpec& l) { l.attention.kind = AttentionKind::kFull; });
  differs([](LayerSpec& l) { ++l.attention.heads; });
  differs([](LayerSpec& l) { ++l.attention.kv_heads; });
  differs([](LayerSpec& l) { ++l.attention.head_dim; });
  differs([](LayerSpec& l) { ++l.attention.window; });
  differs([](LayerSpec& l) { ++l.attention.query_rank; });
  differs([](LayerSpec& l) { ++l.attention.kv_rank; });
  differs([](LayerSpec& l) { ++l.attention.rope_dim; });
  differs([](LayerSpec& l) { ++l.attention.value_dim; });
  differs([](LayerSpec& l) { l.attention.density = 0.5; });
  differs([](LayerSpec& l) { l.attention.query_key_norms = true; });
  differs([](LayerSpec& l) { l.attention.scaled_rotary = true; });
  differs([](LayerSpec& l) { ++l.modulation.vectors; });
  differs([](LayerSpec& l) { ++l.modulation.condition_width; });
  differs([](LayerSpec& l) { l.convolutions.push_back({.in = 1, .out = 2}); });
  differs([](LayerSpec& l) { l.downsample = 2; });
  differs([](LayerSpec& l) { ++l.cross_attention.heads; });
  differs([](LayerSpec& l) { ++l.cross_attention.head_dim; });
  differs([](LayerSpec& l) { ++l.cross_attention.context_width; });
  differs([](LayerSpec& l) { ++l.cross_attention.context_tokens; });
  differs([](LayerSpec& l) { ++l.ffn.hidden; });
  differs([](LayerSpec& l) { l.ffn.gated = false; });
  differs([](LayerSpec& l) { ++l.ffn.experts; });
  differs([](LayerSpec& l) { ++l.ffn.experts_per_token; });
  differs([](LayerSpec& l) { ++l.ffn.shared_experts; });
  differs([](LayerSpec& l) { ++l.ffn.expert_hidden; });
  differs([](LayerSpec& l) { l.ffn.expert_biases = true; });
  differs([](LayerSpec& l) { l.ffn.clamped = true; });
  differs([](LayerSpec& l) { ++l.vocab; });
  differs([](LayerSpec& l) { l.linears.push_back({.in = 1, .out = 2}); });
  differs([](LayerSpec& l) { ++l.vector_parameters; });
  differs([](LayerSpec& l) { l.biases = true; });
  differs([](LayerSpec& l) { l.dropout = true; });
  differs([](LayerSpec& l) { l.tied = true; });
  differs([](LayerSpec& l) { l.on_output_tokens = true; });
  differs([](LayerSpec& l) { l.fixed_flops_per_token = 1; });
  differs([](LayerSpec& l) { l.fixed_flops_per_instance = 1; });
  differs([](LayerSpec& l) { l.fixed_activation_bytes_per_token = 1; });
  differs([](LayerSpec& l) { l.fixed_activation_bytes_per_instance = 1; });
}

}  // namespace
}  // namespace pipeloom::emulator
