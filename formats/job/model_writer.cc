#include "formats/job/model_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/job/model_names.h"
#include "formats/text/json_writer.h"

namespace pipeloom::formats {
namespace {

// Writes fields unless they have the value that a reader takes for an absent
// one.
class Fields {
 public:
  explicit Fields(JsonWriter* json) : json_(json) {}

  Fields& Int(absl::string_view name, int64_t value, int64_t absent = 0) {
    if (value != absent) json_->Key(name).Int(value);
    return *this;
  }
  Fields& Number(absl::string_view name, double value, double absent = 0) {
    if (value != absent) json_->Key(name).Number(value);
    return *this;
  }
  Fields& Flag(absl::string_view name, bool value) {
    if (value) json_->Key(name).Bool(value);
    return *this;
  }
  Fields& Text(absl::string_view name, absl::string_view value) {
    if (!value.empty()) json_->Key(name).String(value);
    return *this;
  }
  template <typename Enum, size_t n>
  Fields& Name(absl::string_view name,
               const std::pair<absl::string_view, Enum> (&names)[n],
               Enum value) {
    json_->Key(name).String(NameIn(names, value));
    return *this;
  }

 private:
  JsonWriter* json_;
};

void WriteLayer(const LayerSpec& layer, JsonWriter* json) {
  Fields fields(json);
  json->BeginObject();
  fields.Name("kind", kLayerKinds, layer.kind)
      .Text("name", layer.name)
      .Int("hidden", layer.hidden);
  const AttentionSpec& a = layer.attention;
  if (a != AttentionSpec{}) {
    json->Key("attention").BeginObject();
    fields.Name("kind", kAttentionKinds, a.kind)
        .Int("heads", a.heads)
        .Int("kv_heads", a.kv_heads)
        .Int("head_dim", a.head_dim)
        .Int("window", a.window)
        .Int("query_rank", a.query_rank)
        .Int("kv_rank", a.kv_rank)
        .Int("rope_dim", a.rope_dim)
        .Int("value_dim", a.value_dim)
        .Number("density", a.density, 1)
        .Flag("query_key_norms", a.query_key_norms)
        .Flag("output_gate", a.output_gate)
        .Flag("scaled_rotary", a.scaled_rotary);
    json->EndObject();
  }
  if (const StateSpaceSpec& s = layer.state_space; s != StateSpaceSpec{}) {
    json->Key("state_space").BeginObject();
    fields.Int("heads", s.heads)
        .Int("head_dim", s.head_dim)
        .Int("state_dim", s.state_dim)
        .Int("groups", s.groups, 1)
        .Int("kernel", s.kernel, 4)
        .Int("chunk", s.chunk, 128);
    json->EndObject();
  }
  if (const DeltaNetSpec& d = layer.delta_net; d != DeltaNetSpec{}) {
    json->Key("delta_net").BeginObject();
    fields.Int("key_heads", d.key_heads)
        .Int("value_heads", d.value_heads)
        .Int("key_dim", d.key_dim)
        .Int("value_dim", d.value_dim)
        .Int("kernel", d.kernel, 4)
        .Int("chunk", d.chunk, 64);
    json->EndObject();
  }
  const CrossAttentionSpec& c = layer.cross_attention;
  if (c != CrossAttentionSpec{}) {
    json->Key("cross_attention").BeginObject();
    fields.Int("heads", c.heads)
        .Int("head_dim", c.head_dim)
        .Int("context_width", c.context_width)
        .Int("context_tokens", c.context_tokens);
    json->EndObject();
  }
  const FfnSpec& f = layer.ffn;
  if (f != FfnSpec{}) {
    json->Key("ffn").BeginObject();
    fields.Int("hidden", f.hidden)
        .Flag("gated", f.gated)
        .Int("experts", f.experts)
        .Int("experts_per_token", f.experts_per_token)
        .Int("shared_experts", f.shared_experts)
        .Int("expert_hidden", f.expert_hidden)
        .Flag("expert_biases", f.expert_biases)
        .Flag("clamped", f.clamped)
        .Int("latent", f.latent);
    json->EndObject();
  }
  fields.Int("vocab", layer.vocab);
  if (!layer.linears.empty()) {
    json->Key("linears").BeginArray();
    for (const LinearSpec& linear : layer.linears) {
      json->BeginObject().Key("in").Int(linear.in);
      json->Key("out").Int(linear.out).EndObject();
    }
    json->EndArray();
  }
  if (layer.modulation != ModulationSpec{}) {
    json->Key("modulation").BeginObject();
    fields.Int("vectors", layer.modulation.vectors)
        .Int("condition_width", layer.modulation.condition_width);
    json->EndObject();
  }
  if (!layer.convolutions.empty()) {
    json->Key("convolutions").BeginArray();
    for (const ConvolutionSpec& v : layer.convolutions) {
      json->BeginObject();
      json->Key("in").Int(v.in).Key("out").Int(v.out);
      fields.Int("kernel", v.kernel, 3)
          .Int("depth", v.depth, 1)
          .Number("scale", v.scale, 1);
      json->EndObject();
    }
    json->EndArray();
  }
  fields.Number("downsample", layer.downsample, 1)
      .Int("vector_parameters", layer.vector_parameters)
      .Flag("biases", layer.biases)
      .Flag("dropout", layer.dropout)
      .Flag("tied", layer.tied)
      .Flag("on_output_tokens", layer.on_output_tokens)
      .Number("fixed_flops_per_token", layer.fixed_flops_per_token)
      .Number("fixed_flops_per_instance", layer.fixed_flops_per_instance)
      .Number("fixed_activation_bytes_per_token",
              layer.fixed_activation_bytes_per_token)
      .Number("fixed_activation_bytes_per_instance",
              layer.fixed_activation_bytes_per_instance);
  json->EndObject();
}

void WriteTokenRule(const TokenRule& rule, JsonWriter* json) {
  Fields fields(json);
  json->BeginObject();
  fields.Name("kind", kTokenRuleKinds, rule.kind)
      .Name("modality", kModalities, rule.modality)
      .Int("side_px", rule.side)
      .Int("patch_px", rule.patch)
      .Int("merge", rule.merge, 1)
      .Int("min_tokens", rule.min_tokens)
      .Int("max_tokens", rule.max_tokens)
      .Int("max_total_tokens", rule.max_total_tokens)
      .Number("fps", rule.fps)
      .Int("min_frames", rule.min_frames)
      .Int("max_frames", rule.max_frames)
      .Int("max_tiles", rule.max_tiles)
      .Int("tokens_per_tile", rule.tokens_per_tile)
      .Int("output_tokens_per_tile", rule.output_tokens_per_tile)
      .Int("crop_side_px", rule.crop_side)
      .Int("output_tokens_per_crop", rule.output_tokens_per_crop)
      .Int("extra_tokens", rule.extra_tokens)
      .Int("spatial_stride_px", rule.spatial_stride)
      .Int("frame_group", rule.frame_group, 1)
      .Int("latents_per_group", rule.latents_per_group, 1)
      .Number("max_seconds", rule.max_seconds)
      .Int("default_width_px", rule.default_width)
      .Int("default_height_px", rule.default_height)
      .Number("tokens_per_second", rule.tokens_per_second)
      .Number("output_tokens_per_second", rule.output_tokens_per_second)
      .Number("chunk_seconds", rule.chunk_seconds);
  json->EndObject();
}

void WriteModule(const ModuleSpec& module, JsonWriter* json) {
  Fields fields(json);
  json->BeginObject().Key("name").String(module.name);
  fields.Name("role", kRoles, module.role);
  if (module.precision != Precision::kBf16) {
    fields.Name("precision", kPrecisions, module.precision);
  }
  fields.Int("adapter_rank", module.adapter_rank);
  json->Key("layers").BeginArray();
  for (int32_t i = 0; i < module.layers.size();) {
    const LayerSpec& layer = module.layers[LayerId(i)];
    int32_t count = 1;
    while (i + count < module.layers.size() &&
           module.layers[LayerId(i + count)] == layer) {
      ++count;
    }
    json->BeginObject().Key("layer");
    WriteLayer(layer, json);
    fields.Int("count", count, 1);
    json->EndObject();
    i += count;
  }
  json->EndArray();
  if (!module.token_rules.empty()) {
    json->Key("token_rules").BeginArray();
    for (const TokenRule& rule : module.token_rules) {
      WriteTokenRule(rule, json);
    }
    json->EndArray();
  }
  fields.Text("source", module.source);
  json->EndObject();
}

// Begins a line for each group of layers and for the token rules. The patterns
// are in no string, where quotes are escaped.
std::string LayersOnLines(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"[{\"layer\": ", "[\n        {\"layer\": "},
             {", {\"layer\": ", ",\n        {\"layer\": "},
             {"], \"token_rules\": ", "],\n      \"token_rules\": "},
             {", \"source\": ", ",\n      \"source\": "}});
}

}  // namespace

std::string PrintModel(const ModelSpec& model) {
  JsonWriter json(/*lines=*/true);
  Fields fields(&json);
  json.BeginObject();
  fields.Text("name", model.name);
  json.Key("modules").BeginArray();
  for (const ModuleSpec& module : model.modules) WriteModule(module, &json);
  json.EndArray();
  if (!model.edges.empty()) {
    json.Key("edges").BeginArray();
    for (const ModuleEdge& edge : model.edges) {
      json.BeginObject();
      json.Key("from").String(model.modules[edge.from].name);
      json.Key("to").String(model.modules[edge.to].name);
      fields.Flag("as_context", edge.as_context);
      json.EndObject();
    }
    json.EndArray();
  }
  fields.Int("published_parameters", model.published_parameters)
      .Text("source", model.source);
  if (!model.missing.empty()) {
    json.Key("missing").BeginArray();
    for (const std::string& part : model.missing) json.String(part);
    json.EndArray();
  }
  json.EndObject();
  return absl::StrCat(LayersOnLines(json.text()), "\n");
}

}  // namespace pipeloom::formats
