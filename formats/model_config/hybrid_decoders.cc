#include "formats/model_config/hybrid_decoders.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/model_config/decoder_shape.h"
#include "formats/model_config/mixture_decoders.h"

namespace pipeloom::formats {
namespace {

constexpr ConfigRange kKernel{1, 16};
constexpr ConfigRange kChunk{1, 1 << 16};

// The kinds of Nemotron-H's layers, each of which is one block.
constexpr char kStateSpace = 'M';
constexpr char kAttention = '*';
constexpr char kFeedForward = '-';
constexpr char kExpertsOf = 'E';

// Returns a letter for each item of a list of names; none without the list.
std::string ReadTypes(const ConfigNode& config, const char* field) {
  static constexpr std::pair<absl::string_view, char> kNames[] = {
      {"mamba", kStateSpace},    {"linear_attention", kStateSpace},
      {"attention", kAttention}, {"full_attention", kAttention},
      {"mlp", kFeedForward},     {"moe", kExpertsOf}};
  std::string pattern;
  for (const std::string& type : config.Texts(field)) {
    char letter = 0;
    for (const auto& [name, of] : kNames) letter = name == type ? of : letter;
    if (letter == 0) {
      config.Fail(field, absl::StrFormat("has \"%s\"; its items must be mamba, "
                                         "attention, mlp or moe",
                                         type));
    }
    pattern.push_back(letter);
  }
  return pattern;
}

// Returns a letter for each layer: those of a pattern, or of a list of names.
std::string ReadPattern(const ConfigNode& config) {
  std::string pattern = ReadTypes(config, "layers_block_type");
  if (!pattern.empty()) return pattern;
  const std::string text = config.Text("hybrid_override_pattern");
  if (text.empty()) {
    config.notes().Miss(config.Path("hybrid_override_pattern"));
  }
  for (const char letter : text) {
    if (letter == '/') break;  // Layers that predict further tokens.
    if (letter == '|') continue;
    if (letter != kStateSpace && letter != kAttention &&
        letter != kFeedForward && letter != kExpertsOf) {
      config.Fail("hybrid_override_pattern",
                  absl::StrFormat("has \"%c\"; its letters must be M (state "
                                  "space), * (attention), - (feed-forward) or "
                                  "E (experts)",
                                  letter));
      break;
    }
    pattern.push_back(letter);
  }
  if (static_cast<int64_t>(pattern.size()) > kLayers.high) {
    config.Fail("hybrid_override_pattern",
                absl::StrFormat("has %d layers; it must have at most %d",
                                pattern.size(), kLayers.high));
    pattern.clear();
  }
  return pattern;
}

// The names of a state space's fields in a configuration, and their defaults.
struct StateSpaceFields {
  const char* heads = "";
  const char* head_dim = "";
  const char* state_dim = "";
  const char* groups = "";
  const char* kernel = "";
  const char* chunk = "";
  const char* bias = "";
  const char* convolution_bias = "";
  int64_t default_state = 0;
  int64_t default_groups = 0;
  int64_t default_chunk = 0;
};

constexpr StateSpaceFields kNemotronFields = {"mamba_num_heads",
                                              "mamba_head_dim",
                                              "ssm_state_size",
                                              "n_groups",
                                              "conv_kernel",
                                              "chunk_size",
                                              "use_bias",
                                              "use_conv_bias",
                                              128,
                                              8,
                                              128};
constexpr StateSpaceFields kGraniteFields = {"mamba_n_heads",
                                             "mamba_d_head",
                                             "mamba_d_state",
                                             "mamba_n_groups",
                                             "mamba_d_conv",
                                             "mamba_chunk_size",
                                             "mamba_proj_bias",
                                             "mamba_conv_bias",
                                             256,
                                             1,
                                             256};

// Reads the mixer of a layer, and adds its biases to the layer's vectors.
void ReadStateSpace(const ConfigNode& config, const StateSpaceFields& fields,
                    int64_t default_head_dim, LayerSpec* layer) {
  StateSpaceSpec& s = layer->state_space;
  s.heads = config.Int(fields.heads, kHeads, 128);
  s.head_dim = config.Int(fields.head_dim, kHeads, default_head_dim);
  s.state_dim = config.Int(fields.state_dim, kHeads, fields.default_state);
  s.groups = config.Int(fields.groups, kHeads, fields.default_groups);
  s.kernel = config.Int(fields.kernel, kKernel, 4);
  s.chunk = config.Int(fields.chunk, kChunk, fields.default_chunk);
  if (s.groups > 0 && s.heads % s.groups != 0) {
    config.Fail(fields.groups,
                absl::StrFormat("is %d; it must divide %s, which is %d",
                                s.groups, fields.heads, s.heads));
    s.groups = 1;
  }
  if (config.Flag(fields.bias, false)) {
    layer->vector_parameters += s.projected() + layer->hidden;
  }
  if (!config.Flag(fields.convolution_bias, true)) {
    config.notes().Assume(absl::StrCat(fields.convolution_bias,
                                       " is true: a model file has a bias"));
  }
}

// Reads a delta net and gated attention, of which each layer has one, and
// appends the layers with this feed-forward part.
void AddGatedLayers(const ConfigNode& config, const DecoderShape& shape,
                    const FfnSpec& ffn, int64_t ffn_vectors,
                    int64_t value_heads, ModuleSpec* module) {
  DeltaNetSpec d;
  d.key_heads = config.Int("linear_num_key_heads", kHeads, 16);
  d.value_heads = config.Int("linear_num_value_heads", kHeads, value_heads);
  d.key_dim = config.Int("linear_key_head_dim", kHeads, 128);
  d.value_dim = config.Int("linear_value_head_dim", kHeads, 128);
  d.kernel = config.Int("linear_conv_kernel_dim", kKernel, 4);
  if (d.key_heads > 0 && d.value_heads % d.key_heads != 0) {
    config.Fail("linear_num_key_heads",
                absl::StrFormat("is %d; it must divide linear_num_value_heads, "
                                "which is %d",
                                d.key_heads, d.value_heads));
    d.key_heads = d.value_heads;
  }
  const int64_t norms = 2 * shape.hidden + ffn_vectors;
  LayerSpec delta =
      TransformerLayer("delta_block", shape.hidden, {}, ffn, {}, norms);
  delta.delta_net = d;
  AttentionSpec attention = shape.attention;
  attention.output_gate = true;
  const bool bias = config.Flag("attention_bias", false);
  const LayerSpec full = TransformerLayer(
      "block", shape.hidden, attention, ffn,
      {.query_key_value = bias, .attention_output = bias},
      norms + 2 * attention.head_dim + (bias ? attention.mixed() : 0));
  const std::vector<std::string> types = config.Texts("layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != shape.layers) {
    config.Fail("layer_types",
                absl::StrFormat("has %d items; it must have one for each of "
                                "the %d layers",
                                types.size(), shape.layers));
    return;
  }
  const int64_t interval =
      config.Optional("full_attention_interval", kLayers).value_or(4);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const bool is_full =
        types.empty() ? (i + 1) % interval == 0 : types[i] == "full_attention";
    module->layers.push_back(is_full ? full : delta);
  }
}

// Reads experts with a gated shared one.
FfnSpec ReadQwenExperts(const ConfigNode& config, int64_t experts,
                        int64_t per_token) {
  FfnSpec ffn = Experts(config, config.Int("num_experts", kExperts, experts),
                        config.Int("num_experts_per_tok", kExperts, per_token),
                        config.Int("moe_intermediate_size", kWidth, 512));
  AddSharedExpert(
      config, "shared_expert_intermediate_size",
      config.Int("shared_expert_intermediate_size", {0, kWidth.high}, 512),
      &ffn);
  return ffn;
}

}  // namespace

ModuleSpec ReadNemotronH(const ConfigNode& config) {
  DecoderShape shape;
  shape.hidden = config.Int("hidden_size", kWidth);
  shape.vocab = config.Int("vocab_size", kVocab, 131072);
  shape.tied = config.Flag("tie_word_embeddings", false);
  AttentionSpec& a = shape.attention;
  a.kind = AttentionKind::kCausal;
  a.heads = config.Int("num_attention_heads", kHeads, 32);
  a.kv_heads = config.IsNull("num_key_value_heads")
                   ? a.heads
                   : config.Int("num_key_value_heads", kHeads, 8);
  a.head_dim = config.Int(
      config.Has("attention_head_dim") ? "attention_head_dim" : "head_dim",
      kHeads, 128);
  if (a.kv_heads > 0 && a.heads % a.kv_heads != 0) {
    config.Fail("num_key_value_heads",
                absl::StrFormat("is %d; it must divide num_attention_heads, "
                                "which is %d",
                                a.kv_heads, a.heads));
  }
  if (config.Has("num_nextn_predict_layers") &&
      config.Int("num_nextn_predict_layers", kCount) > 0) {
    config.notes().Assume(
        "the multi-token-prediction layers are left out, as transformers does");
  }
  const int64_t norm = shape.hidden;
  const bool bias = config.Flag("mlp_bias", false);
  ModuleSpec module = BeginDecoder(shape);
  LayerSpec states;
  LayerSpec dense;
  LayerSpec experts;
  for (const char letter : ReadPattern(config)) {
    switch (letter) {
      case kStateSpace:
        if (states.hidden == 0) {
          states =
              TransformerLayer("state_space", shape.hidden, {}, {}, {}, norm);
          ReadStateSpace(config, kNemotronFields, 64, &states);
        }
        module.layers.push_back(states);
        break;
      case kAttention:
        module.layers.push_back(
            TransformerLayer("attention", shape.hidden, a, {}, {}, norm));
        break;
      case kFeedForward:
        if (dense.hidden == 0) {
          dense = TransformerLayer(
              "feed_forward", shape.hidden, {},
              {.hidden = config.Int("intermediate_size", kWidth, 21504)},
              {.ffn = bias}, norm);
        }
        module.layers.push_back(dense);
        break;
      default:
        if (experts.hidden == 0) {
          FfnSpec ffn =
              Experts(config, config.Int("n_routed_experts", kExperts, 8),
                      config.Int("num_experts_per_tok", kExperts, 2),
                      config.Int("moe_intermediate_size", kWidth, 7688));
          ffn.gated = false;
          AddSharedExpert(config, "moe_shared_expert_intermediate_size",
                          config.Int("moe_shared_expert_intermediate_size",
                                     {0, kWidth.high}, 7688),
                          &ffn);
          if (ffn.experts > 0) {
            ffn.latent = config.Optional("moe_latent_size", kWidth).value_or(0);
          }
          experts =
              TransformerLayer("experts", shape.hidden, {}, ffn, {}, norm);
        }
        module.layers.push_back(experts);
        break;
    }
  }
  FinishDecoder(shape, norm, &module);
  return module;
}

ModuleSpec ReadGraniteMoeHybrid(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(
      config, {.hidden = 4096, .layers = 32, .heads = 32, .vocab = 32000});
  FfnSpec ffn = Experts(config, config.Int("num_local_experts", kExperts, 8),
                        config.Int("num_experts_per_tok", kExperts, 2),
                        config.Int("intermediate_size", kWidth, 11008));
  const int64_t shared = config.Int("shared_intermediate_size", kWidth, 1024);
  if (ffn.experts > 0) {
    AddSharedExpert(config, "shared_intermediate_size", shared, &ffn);
  } else {
    ffn = {.hidden = shared, .gated = true};
  }
  const int64_t norms = 2 * shape.hidden;
  const bool bias = config.Flag("attention_bias", false);
  const LayerSpec attention = TransformerLayer(
      "attention", shape.hidden, shape.attention, ffn,
      {.query_key_value = bias, .attention_output = bias}, norms);
  LayerSpec states =
      TransformerLayer("state_space", shape.hidden, {}, ffn, {}, norms);
  std::string pattern = ReadTypes(config, "layer_types");
  if (pattern.empty()) pattern.assign(shape.layers, kStateSpace);
  if (pattern.find(kStateSpace) != std::string::npos) {
    const int64_t width = config.Int("mamba_expand", kHeads, 2) * shape.hidden;
    const int64_t heads = config.Int("mamba_n_heads", kHeads, 128);
    ReadStateSpace(config, kGraniteFields,
                   std::max<int64_t>(1, width / std::max<int64_t>(1, heads)),
                   &states);
    if (states.state_space.heads * states.state_space.head_dim != width) {
      config.Fail("mamba_d_head",
                  absl::StrFormat("is %d; mamba_n_heads times it must be "
                                  "mamba_expand times hidden_size, which is %d",
                                  states.state_space.head_dim, width));
    }
  }
  if (static_cast<int64_t>(pattern.size()) != shape.layers) {
    config.Fail("layer_types",
                absl::StrFormat("has %d items; it must have one for each of "
                                "the %d layers",
                                pattern.size(), shape.layers));
    pattern.clear();
  }
  ModuleSpec module = BeginDecoder(shape);
  for (const char letter : pattern) {
    if (letter != kStateSpace && letter != kAttention) {
      config.Fail("layer_types", "must have mamba and attention only");
      break;
    }
    module.layers.push_back(letter == kStateSpace ? states : attention);
  }
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

ModuleSpec ReadQwen3Next(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(
      config, {.heads = 16, .kv_heads = 2, .head_dim = 256, .vocab = 151936});
  ModuleSpec module = BeginDecoder(shape);
  if (!config.Ints("mlp_only_layers", {0, kLayers.high}).empty() ||
      config.Optional("decoder_sparse_step", kLayers).value_or(1) != 1) {
    config.notes().Miss(
        "dense layers among those with experts (mlp_only_layers, "
        "decoder_sparse_step): all have experts");
  }
  AddGatedLayers(config, shape, ReadQwenExperts(config, 512, 10), shape.hidden,
                 32, &module);
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

ModuleSpec ReadQwen35Text(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(
      config, {.heads = 16, .kv_heads = 4, .head_dim = 256, .vocab = 248320});
  ModuleSpec module = BeginDecoder(shape);
  AddGatedLayers(
      config, shape,
      {.hidden = config.Int("intermediate_size", kWidth, 12288), .gated = true},
      0, 32, &module);
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

ModuleSpec ReadQwen35MoeText(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(
      config, {.heads = 16, .kv_heads = 2, .head_dim = 256, .vocab = 248320});
  ModuleSpec module = BeginDecoder(shape);
  AddGatedLayers(config, shape, ReadQwenExperts(config, 256, 8), shape.hidden,
                 32, &module);
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

}  // namespace pipeloom::formats
