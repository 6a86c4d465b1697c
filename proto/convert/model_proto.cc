#include "proto/convert/job_proto.h"

namespace pipeloom::convert {
namespace {

// Converts an enum of ours to that of the messages, which has one value more, 0
// for unspecified, in front.
template <typename Proto, typename Ours>
Proto Shifted(Ours value) {
  return static_cast<Proto>(static_cast<int>(value) + 1);
}
static_assert(static_cast<int>(Modality::kAudio) + 1 == v1::MODALITY_AUDIO);
static_assert(static_cast<int>(ModuleRole::kGenerator) + 1 ==
              v1::MODULE_ROLE_GENERATOR);
static_assert(static_cast<int>(AttentionKind::kWindow) + 1 ==
              v1::ATTENTION_KIND_WINDOW);
static_assert(static_cast<int>(LayerKind::kConvolutions) + 1 ==
              v1::LAYER_KIND_CONVOLUTIONS);
static_assert(static_cast<int>(Precision::kFp32) + 1 == v1::PRECISION_FP32);
static_assert(static_cast<int>(TokenRuleKind::kAnyResolution) + 1 ==
              v1::TOKEN_RULE_KIND_ANY_RESOLUTION);

void SetAttention(const AttentionSpec& attention, v1::AttentionSpec* proto) {
  proto->set_kind(Shifted<v1::AttentionKind>(attention.kind));
  proto->set_heads(attention.heads);
  proto->set_kv_heads(attention.kv_heads);
  proto->set_head_dim(attention.head_dim);
  proto->set_window(attention.window);
  proto->set_query_rank(attention.query_rank);
  proto->set_kv_rank(attention.kv_rank);
  proto->set_rope_dim(attention.rope_dim);
  proto->set_value_dim(attention.value_dim);
  proto->set_density(attention.density);
  proto->set_query_key_norms(attention.query_key_norms);
  proto->set_output_gate(attention.output_gate);
  proto->set_scaled_rotary(attention.scaled_rotary);
}

void SetMixers(const LayerSpec& layer, v1::LayerSpec* proto) {
  if (const StateSpaceSpec& s = layer.state_space; s != StateSpaceSpec{}) {
    v1::StateSpaceSpec& out = *proto->mutable_state_space();
    out.set_heads(s.heads);
    out.set_head_dim(s.head_dim);
    out.set_state_dim(s.state_dim);
    out.set_groups(s.groups);
    out.set_kernel(s.kernel);
    out.set_chunk(s.chunk);
  }
  if (const DeltaNetSpec& d = layer.delta_net; d != DeltaNetSpec{}) {
    v1::DeltaNetSpec& out = *proto->mutable_delta_net();
    out.set_key_heads(d.key_heads);
    out.set_value_heads(d.value_heads);
    out.set_key_dim(d.key_dim);
    out.set_value_dim(d.value_dim);
    out.set_kernel(d.kernel);
    out.set_chunk(d.chunk);
  }
}

void SetFfn(const FfnSpec& ffn, v1::FfnSpec* proto) {
  proto->set_hidden(ffn.hidden);
  proto->set_gated(ffn.gated);
  proto->set_experts(ffn.experts);
  proto->set_experts_per_token(ffn.experts_per_token);
  proto->set_shared_experts(ffn.shared_experts);
  proto->set_expert_hidden(ffn.expert_hidden);
  proto->set_expert_biases(ffn.expert_biases);
  proto->set_clamped(ffn.clamped);
  proto->set_latent(ffn.latent);
}

void SetLayer(const LayerSpec& layer, v1::LayerSpec* proto) {
  proto->set_kind(Shifted<v1::LayerKind>(layer.kind));
  proto->set_name(layer.name);
  proto->set_hidden(layer.hidden);
  SetAttention(layer.attention, proto->mutable_attention());
  SetMixers(layer, proto);
  v1::CrossAttentionSpec& cross = *proto->mutable_cross_attention();
  cross.set_heads(layer.cross_attention.heads);
  cross.set_head_dim(layer.cross_attention.head_dim);
  cross.set_context_width(layer.cross_attention.context_width);
  cross.set_context_tokens(layer.cross_attention.context_tokens);
  SetFfn(layer.ffn, proto->mutable_ffn());
  proto->set_vocab(layer.vocab);
  for (const LinearSpec& linear : layer.linears) {
    v1::LinearSpec& l = *proto->add_linears();
    l.set_in(linear.in);
    l.set_out(linear.out);
  }
  proto->mutable_modulation()->set_vectors(layer.modulation.vectors);
  proto->mutable_modulation()->set_condition_width(
      layer.modulation.condition_width);
  for (const ConvolutionSpec& convolution : layer.convolutions) {
    v1::ConvolutionSpec& c = *proto->add_convolutions();
    c.set_in(convolution.in);
    c.set_out(convolution.out);
    c.set_kernel(convolution.kernel);
    c.set_depth(convolution.depth);
    c.set_scale(convolution.scale);
  }
  proto->set_downsample(layer.downsample);
  proto->set_vector_parameters(layer.vector_parameters);
  proto->set_tied(layer.tied);
  proto->set_biases(layer.biases);
  proto->set_dropout(layer.dropout);
  proto->set_on_output_tokens(layer.on_output_tokens);
  proto->set_fixed_flops_per_token(layer.fixed_flops_per_token);
  proto->set_fixed_flops_per_instance(layer.fixed_flops_per_instance);
  proto->set_fixed_activation_bytes_per_token(
      layer.fixed_activation_bytes_per_token);
  proto->set_fixed_activation_bytes_per_instance(
      layer.fixed_activation_bytes_per_instance);
}

void SetTokenRule(const TokenRule& rule, v1::TokenRule* proto) {
  proto->set_kind(Shifted<v1::TokenRuleKind>(rule.kind));
  proto->set_modality(Shifted<v1::Modality>(rule.modality));
  proto->set_side_px(rule.side);
  proto->set_patch_px(rule.patch);
  proto->set_merge(rule.merge);
  proto->set_min_tokens(rule.min_tokens);
  proto->set_max_tokens(rule.max_tokens);
  proto->set_max_total_tokens(rule.max_total_tokens);
  proto->set_fps(rule.fps);
  proto->set_min_frames(rule.min_frames);
  proto->set_max_frames(rule.max_frames);
  proto->set_max_tiles(rule.max_tiles);
  proto->set_tokens_per_tile(rule.tokens_per_tile);
  proto->set_output_tokens_per_tile(rule.output_tokens_per_tile);
  proto->set_crop_side_px(rule.crop_side);
  proto->set_output_tokens_per_crop(rule.output_tokens_per_crop);
  proto->set_extra_tokens(rule.extra_tokens);
  proto->set_spatial_stride_px(rule.spatial_stride);
  proto->set_frame_group(rule.frame_group);
  proto->set_latents_per_group(rule.latents_per_group);
  proto->set_max_seconds(rule.max_seconds);
  proto->set_default_width_px(rule.default_width);
  proto->set_default_height_px(rule.default_height);
  proto->set_tokens_per_second(rule.tokens_per_second);
  proto->set_output_tokens_per_second(rule.output_tokens_per_second);
  proto->set_chunk_seconds(rule.chunk_seconds);
}

}  // namespace

v1::ModelSpec ToProto(const ModelSpec& model) {
  v1::ModelSpec proto;
  proto.set_name(model.name);
  for (const ModuleSpec& module : model.modules) {
    v1::ModuleSpec& m = *proto.add_modules();
    m.set_name(module.name);
    m.set_role(Shifted<v1::ModuleRole>(module.role));
    const LayerSpec* last = nullptr;
    for (const LayerSpec& layer : module.layers) {
      if (last != nullptr && *last == layer) {
        v1::LayerGroup& group = *m.mutable_layers(m.layers_size() - 1);
        group.set_count(group.count() + 1);
        continue;
      }
      v1::LayerGroup& group = *m.add_layers();
      SetLayer(layer, group.mutable_layer());
      group.set_count(1);
      last = &layer;
    }
    for (const TokenRule& rule : module.token_rules) {
      SetTokenRule(rule, m.add_token_rules());
    }
    m.set_source(module.source);
    m.set_precision(Shifted<v1::Precision>(module.precision));
    m.set_adapter_rank(module.adapter_rank);
  }
  for (const ModuleEdge& edge : model.edges) {
    v1::ModuleEdge& e = *proto.add_edges();
    e.set_from(model.modules[edge.from].name);
    e.set_to(model.modules[edge.to].name);
    e.set_as_context(edge.as_context);
  }
  proto.set_published_parameters(model.published_parameters);
  proto.set_source(model.source);
  for (const std::string& part : model.missing) proto.add_missing(part);
  return proto;
}

}  // namespace pipeloom::convert
