#include "formats/model_config/mixture_decoders.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "formats/model_config/decoder_shape.h"

namespace pipeloom::formats {
namespace {

bool Contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

FfnSpec Experts(const ConfigNode& config, int64_t experts, int64_t per_token,
                int64_t width) {
  if (experts > 0 && per_token > experts) {
    config.Fail("num_experts_per_tok",
                absl::StrFormat("is %d; it must be at most the number of "
                                "experts, which is %d",
                                per_token, experts));
  }
  return {.gated = true,
          .experts = experts,
          .experts_per_token = per_token,
          .expert_hidden = width};
}

void AddSharedExpert(const ConfigNode& config, absl::string_view field,
                     int64_t width, FfnSpec* ffn) {
  if (width == 0 || ffn->expert_hidden == 0) return;
  if (width % ffn->expert_hidden != 0) {
    config.Fail(field,
                absl::StrFormat("is %d; a model file can only hold a multiple "
                                "of the width of an expert, which is %d",
                                width, ffn->expert_hidden));
    return;
  }
  ffn->shared_experts = width / ffn->expert_hidden;
}

namespace {

// The layers of Qwen's mixtures: experts in every `decoder_sparse_step`-th
// layer that `mlp_only_layers` does not name.
ModuleSpec MakeQwenMixture(const ConfigNode& config, const DecoderShape& shape,
                           const FfnSpec& experts, const Biases& biases,
                           int64_t norms, int64_t expert_vectors) {
  ModuleSpec module = BeginDecoder(shape);
  const std::vector<int64_t> dense =
      config.Ints("mlp_only_layers", {0, kLayers.high});
  const int64_t step =
      config.Has("decoder_sparse_step")
          ? config.Int("decoder_sparse_step", {1, kLayers.high})
          : 1;
  const LayerSpec sparse =
      TransformerLayer("block", shape.hidden, shape.attention, experts, biases,
                       norms + expert_vectors);
  LayerSpec plain;
  for (int64_t i = 0; i < shape.layers; ++i) {
    if (step > 0 && (i + 1) % step == 0 && !Contains(dense, i) &&
        experts.experts > 0) {
      module.layers.push_back(sparse);
      continue;
    }
    if (plain.hidden == 0) {
      plain = TransformerLayer(
          "dense_block", shape.hidden, shape.attention,
          {.hidden = config.Int("intermediate_size", kWidth), .gated = true},
          biases, norms);
    }
    module.layers.push_back(plain);
  }
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

// Returns the field that names the number of experts: newer configurations have
// another name for it.
absl::string_view ExpertsField(const ConfigNode& config) {
  return config.Has("num_local_experts") ? "num_local_experts" : "num_experts";
}

// The defaults of a class with attention of low-rank projections (MLA).
struct LatentDefaults {
  int64_t query_rank = 1536;
  int64_t plain_dim = 128;  // A head's width without the rotary.
  int64_t value_dim = 128;
};

AttentionSpec ReadLatentAttention(const ConfigNode& config, int64_t heads,
                                  const LatentDefaults& defaults) {
  AttentionSpec a;
  a.kind = AttentionKind::kCausal;
  a.heads = heads;
  a.kv_heads = heads;
  a.query_rank = config.IsNull("q_lora_rank")
                     ? 0
                     : config.Int("q_lora_rank", kWidth, defaults.query_rank);
  a.kv_rank = config.Int("kv_lora_rank", kWidth, 512);
  a.rope_dim = config.Int("qk_rope_head_dim", kHeads, 64);
  a.head_dim =
      config.Int("qk_nope_head_dim", kHeads, defaults.plain_dim) + a.rope_dim;
  a.value_dim = config.Int("v_head_dim", kHeads, defaults.value_dim);
  return a;
}

void NotePredictionLayers(const ConfigNode& config) {
  if (config.Has("num_nextn_predict_layers") &&
      config.Int("num_nextn_predict_layers", kCount) > 0) {
    config.notes().Assume(
        "the multi-token-prediction layer is left out, as transformers does");
  }
}

ModuleSpec MakeDeepSeek(const ConfigNode& config, DecoderShape shape,
                        int64_t experts, int64_t shared, int64_t per_token,
                        int64_t expert_width, int64_t first_dense,
                        const LatentDefaults& defaults = {}) {
  shape.attention =
      ReadLatentAttention(config, shape.attention.heads, defaults);
  const AttentionSpec& a = shape.attention;
  ModuleSpec module = BeginDecoder(shape);
  int64_t vectors = 2 * shape.hidden + a.query_rank + a.kv_rank;
  if (config.Flag("attention_bias", false)) {
    vectors += a.query_rank + a.kv_rank + a.rope_dim + shape.hidden;
  }
  FfnSpec ffn = Experts(config, experts, per_token, expert_width);
  ffn.shared_experts = shared;
  const LayerSpec sparse =
      TransformerLayer("block", shape.hidden, a, ffn, {}, vectors);
  // The class of transformers does not read this field, that of the checkpoint
  // and the trainers do.
  const int64_t step = config.Optional("moe_layer_freq", kLayers).value_or(1);
  LayerSpec plain;
  for (int64_t i = 0; i < shape.layers; ++i) {
    if (experts > 0 && i >= first_dense && step > 0 && i % step == 0) {
      module.layers.push_back(sparse);
      continue;
    }
    if (plain.hidden == 0) {
      plain = TransformerLayer(
          "dense_block", shape.hidden, a,
          {.hidden = config.Int("intermediate_size", kWidth), .gated = true},
          {.ffn = config.Flag("mlp_bias", false)}, vectors);
    }
    module.layers.push_back(plain);
  }
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

// The layers of GLM-4.5, with `norms` parameters of norms each.
ModuleSpec MakeGlm4Moe(const ConfigNode& config, const DecoderShape& shape,
                       bool bias, int64_t norms) {
  FfnSpec ffn = Experts(config, config.Int("n_routed_experts", kExperts, 128),
                        config.Int("num_experts_per_tok", kExperts, 8),
                        config.Int("moe_intermediate_size", kWidth, 1408));
  ffn.shared_experts = config.Int("n_shared_experts", kExperts, 1);
  const Biases biases{.query_key_value = bias};
  const int64_t first_dense = std::min(
      config.Int("first_k_dense_replace", {0, kLayers.high}, 1), shape.layers);
  ModuleSpec module = BeginDecoder(shape);
  if (first_dense > 0) {
    AddLayers(first_dense,
              TransformerLayer(
                  "dense_block", shape.hidden, shape.attention,
                  {.hidden = config.Int("intermediate_size", kWidth, 10944),
                   .gated = true},
                  biases, norms),
              &module);
  }
  AddLayers(shape.layers - first_dense,
            TransformerLayer("block", shape.hidden, shape.attention, ffn,
                             biases, norms),
            &module);
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

}  // namespace

ModuleSpec ReadMixtral(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(config, {.kv_heads = 8});
  ModuleSpec module = BeginDecoder(shape);
  const FfnSpec ffn =
      Experts(config, config.Int("num_local_experts", kExperts, 8),
              config.Int("num_experts_per_tok", kExperts, 2),
              config.Int("intermediate_size", kWidth));
  AddLayers(shape.layers,
            TransformerLayer("block", shape.hidden, shape.attention, ffn, {},
                             2 * shape.hidden),
            &module);
  FinishDecoder(shape, shape.hidden, &module);
  SetWindows(
      config, config.Optional("sliding_window", kVocab).value_or(0),
      [](int64_t) { return true; }, &module);
  return module;
}

ModuleSpec ReadMiniMaxM2(const ConfigNode& config) {
  DecoderShape shape =
      ReadDecoderShape(config, {.kv_heads = 8, .head_dim = 128});
  NotePredictionLayers(config);
  const FfnSpec ffn =
      Experts(config, config.Int("num_local_experts", kExperts, 256),
              config.Int("num_experts_per_tok", kExperts, 8),
              config.Int("intermediate_size", kWidth));
  // Norms of all queries and of all keys at once.
  AttentionSpec& a = shape.attention;
  a.query_key_norms = true;
  ModuleSpec module = BeginDecoder(shape);
  AddLayers(
      shape.layers,
      TransformerLayer("block", shape.hidden, a, ffn, {},
                       2 * shape.hidden + (a.heads + a.kv_heads) * a.head_dim),
      &module);
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

ModuleSpec ReadQwen2Moe(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(config, {});
  FfnSpec ffn = Experts(config, config.Int(ExpertsField(config), kExperts, 60),
                        config.Int("num_experts_per_tok", kExperts, 4),
                        config.Int("moe_intermediate_size", kWidth, 1408));
  AddSharedExpert(
      config, "shared_expert_intermediate_size",
      config.Int("shared_expert_intermediate_size", {0, kWidth.high}, 5632),
      &ffn);
  ModuleSpec module = MakeQwenMixture(
      config, shape, ffn, {.query_key_value = config.Flag("qkv_bias", true)},
      2 * shape.hidden, /*expert_vectors=*/shape.hidden);
  if (config.Flag("use_sliding_window", false)) {
    const int64_t end = config.Int("max_window_layers", {0, kLayers.high}, 28);
    SetWindows(
        config, config.Int("sliding_window", kVocab, 4096),
        [end](int64_t layer) { return layer % 2 == 0 && layer < end; },
        &module);
  }
  return module;
}

ModuleSpec ReadQwen3Moe(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(config, {});
  const FfnSpec ffn =
      Experts(config, config.Int(ExpertsField(config), kExperts, 128),
              config.Int("num_experts_per_tok", kExperts, 8),
              config.Int("moe_intermediate_size", kWidth, 768));
  const bool bias = config.Flag("attention_bias", false);
  ModuleSpec module = MakeQwenMixture(
      config, shape, ffn, {.query_key_value = bias, .attention_output = bias},
      2 * shape.hidden + 2 * shape.attention.head_dim, /*expert_vectors=*/0);
  if (config.Flag("use_sliding_window", false)) {
    SetWindows(
        config, config.Int("sliding_window", kVocab, 4096),
        [](int64_t) { return true; }, &module);
  }
  return module;
}

ModuleSpec ReadDeepSeekV2(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(config, {});
  return MakeDeepSeek(
      config, shape, config.Int("n_routed_experts", kExperts, 64),
      config.Int("n_shared_experts", kExperts, 2),
      config.Int("num_experts_per_tok", kExperts),
      config.Int("moe_intermediate_size", kWidth, 1407),
      config.Int("first_k_dense_replace", {0, kLayers.high}, 0));
}

ModuleSpec ReadDeepSeekV3(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(config, {});
  NotePredictionLayers(config);
  return MakeDeepSeek(
      config, shape, config.Int("n_routed_experts", kExperts, 256),
      config.Int("n_shared_experts", kExperts, 1),
      config.Int("num_experts_per_tok", kExperts, 8),
      config.Int("moe_intermediate_size", kWidth, 2048),
      config.Int("first_k_dense_replace", {0, kLayers.high}, 3));
}

ModuleSpec ReadGlm4MoeLite(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(config, {.hidden = 2048,
                                                       .layers = 47,
                                                       .heads = 20,
                                                       .kv_heads = 20,
                                                       .head_dim = 256,
                                                       .vocab = 154880});
  NotePredictionLayers(config);
  // The first layers are dense: those of a list, or a number of them.
  const std::vector<std::string> types = config.Texts("mlp_layer_types");
  const auto sparse =
      std::find_if(types.begin(), types.end(),
                   [](const std::string& type) { return type != "dense"; });
  if (std::any_of(sparse, types.end(),
                  [](const std::string& type) { return type != "sparse"; })) {
    config.Fail(
        "mlp_layer_types",
        "must be a number of \"dense\" layers and then \"sparse\" ones");
  }
  const int64_t first_dense =
      types.empty()
          ? config.Optional("first_k_dense_replace", kCount).value_or(1)
          : sparse - types.begin();
  return MakeDeepSeek(
      config, shape, config.Int("n_routed_experts", kExperts, 64),
      config.Int("n_shared_experts", kExperts, 1),
      config.Int("num_experts_per_tok", kExperts, 4),
      config.Int("moe_intermediate_size", kWidth, 1536), first_dense,
      {.query_rank = 768, .plain_dim = 192, .value_dim = 256});
}

ModuleSpec ReadGptOss(const ConfigNode& config) {
  DecoderShape shape =
      ReadDecoderShape(config, {.kv_heads = 8, .head_dim = 64});
  shape.attention.scaled_rotary = HasScaledRotary(config, true);
  const int64_t width = config.Int("intermediate_size", kWidth);
  FfnSpec ffn = Experts(config, config.Int(ExpertsField(config), kExperts, 128),
                        config.Int("num_experts_per_tok", kExperts, 4), width);
  ffn.expert_biases = true;
  ffn.clamped = true;
  // Norms, a sink a head, biases of the router and of the experts.
  const int64_t vectors = 2 * shape.hidden + shape.attention.heads +
                          ffn.experts +
                          ffn.experts * (2 * width + shape.hidden);
  const bool bias = config.Flag("attention_bias", true);
  const LayerSpec block = TransformerLayer(
      "block", shape.hidden, shape.attention, ffn,
      {.query_key_value = bias, .attention_output = bias}, vectors);
  ModuleSpec module = BeginDecoder(shape);
  AddLayers(shape.layers, block, &module);
  FinishDecoder(shape, shape.hidden, &module);
  SetWindows(
      config, config.Int("sliding_window", kVocab, 128),
      [](int64_t layer) { return layer % 2 == 0; }, &module);
  return module;
}

ModuleSpec ReadGlm4Moe(const ConfigNode& config) {
  const DecoderShape shape =
      ReadDecoderShape(config, {.kv_heads = 8, .vocab = 151552});
  NotePredictionLayers(config);
  const int64_t norms =
      config.Flag("use_qk_norm", false) ? 2 * shape.attention.head_dim : 0;
  return MakeGlm4Moe(config, shape, config.Flag("attention_bias", false),
                     2 * shape.hidden + norms);
}

ModuleSpec ReadGlm4MoeText(const ConfigNode& config) {
  const DecoderShape shape =
      ReadDecoderShape(config, {.kv_heads = 8, .vocab = 151424});
  return MakeGlm4Moe(config, shape, config.Flag("attention_bias", true),
                     2 * shape.hidden);
}

ModuleSpec ReadLlama4Text(const ConfigNode& config) {
  const DecoderShape shape = ReadDecoderShape(
      config, {.heads = 40, .kv_heads = 8, .head_dim = 128, .vocab = 202048});
  if (config.Has("attention_chunk_size")) {
    config.notes().Assume(absl::StrFormat(
        "layers with attention in chunks of %d tokens are priced with full "
        "causal attention",
        config.Int("attention_chunk_size", kVocab)));
  }
  const int64_t width = config.Int("intermediate_size", kWidth, 8192);
  FfnSpec ffn = Experts(config, config.Int("num_local_experts", kExperts, 16),
                        config.Int("num_experts_per_tok", kExperts, 1), width);
  ffn.shared_experts = 1;
  const bool bias = config.Flag("attention_bias", false);
  const Biases biases{.query_key_value = bias, .attention_output = bias};
  const LayerSpec sparse = TransformerLayer(
      "block", shape.hidden, shape.attention, ffn, biases, 2 * shape.hidden);
  const bool listed = config.Has("moe_layers");
  const std::vector<int64_t> sparse_layers =
      config.Ints("moe_layers", {0, kLayers.high});
  const int64_t step =
      listed ? 1 : config.Int("interleave_moe_layer_step", kLayers, 1);
  LayerSpec plain;
  ModuleSpec module = BeginDecoder(shape);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const bool is_sparse =
        listed ? Contains(sparse_layers, i) : step > 0 && (i + 1) % step == 0;
    if (!is_sparse && plain.hidden == 0) {
      plain = TransformerLayer(
          "dense_block", shape.hidden, shape.attention,
          {.hidden = config.Int("intermediate_size_mlp", kWidth, 16384),
           .gated = true},
          biases, 2 * shape.hidden);
    }
    module.layers.push_back(is_sparse ? sparse : plain);
  }
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

}  // namespace pipeloom::formats
