#include "emulator/ops/layer_fingerprint.h"

namespace pipeloom::emulator {

Fingerprint FingerprintOf(const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  const CrossAttentionSpec& c = layer.cross_attention;
  const FfnSpec& f = layer.ffn;
  FingerprintBuilder builder;
  builder.Add(layer.kind).Add(layer.hidden);
  builder.Add(a.kind).Add(a.heads).Add(a.kv_heads).Add(a.head_dim);
  builder.Add(a.window).Add(a.query_rank).Add(a.kv_rank).Add(a.rope_dim);
  builder.Add(a.value_dim).Add(a.density).Add(a.query_key_norms);
  builder.Add(a.output_gate).Add(a.scaled_rotary);
  const StateSpaceSpec& s = layer.state_space;
  builder.Add(s.heads).Add(s.head_dim).Add(s.state_dim).Add(s.groups);
  builder.Add(s.kernel).Add(s.chunk);
  const DeltaNetSpec& d = layer.delta_net;
  builder.Add(d.key_heads).Add(d.value_heads).Add(d.key_dim).Add(d.value_dim);
  builder.Add(d.kernel).Add(d.chunk);
  builder.Add(c.heads).Add(c.head_dim).Add(c.context_width);
  builder.Add(c.context_tokens);
  builder.Add(f.hidden).Add(f.gated).Add(f.experts).Add(f.experts_per_token);
  builder.Add(f.shared_experts).Add(f.expert_hidden);
  builder.Add(f.expert_biases).Add(f.clamped).Add(f.latent);
  builder.Add(layer.vocab).Add(layer.linears.size());
  for (const LinearSpec& linear : layer.linears) {
    builder.Add(linear.in).Add(linear.out);
  }
  builder.Add(layer.modulation.vectors).Add(layer.modulation.condition_width);
  builder.Add(layer.convolutions.size());
  for (const ConvolutionSpec& conv : layer.convolutions) {
    builder.Add(conv.in).Add(conv.out).Add(conv.kernel).Add(conv.depth);
    builder.Add(conv.scale);
  }
  builder.Add(layer.downsample).Add(layer.biases).Add(layer.dropout);
  return builder.Add(layer.vector_parameters)
      .Add(layer.tied)
      .Add(layer.on_output_tokens)
      .Add(layer.fixed_flops_per_token)
      .Add(layer.fixed_flops_per_instance)
      .Add(layer.fixed_activation_bytes_per_token)
      .Add(layer.fixed_activation_bytes_per_instance)
      .Build();
}

}  // namespace pipeloom::emulator
