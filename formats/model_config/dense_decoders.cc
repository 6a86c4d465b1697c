#include "formats/model_config/dense_decoders.h"

#include <utility>

#include "formats/model_config/decoder_shape.h"

namespace pipeloom::formats {
namespace {

// How a family differs from Llama.
struct DenseFamily {
  Biases biases{};
  bool query_key_norms = false;  // Norms of a head's width.
  int64_t norms_of_layer = 2;
  int64_t ffn = 0;  // The default of the class; 0: it has none.
};

ModuleSpec MakeDense(const ConfigNode& config, const DecoderShape& shape,
                     const DenseFamily& family) {
  ModuleSpec module = BeginDecoder(shape);
  const FfnSpec ffn{
      .hidden = family.ffn > 0
                    ? config.Int("intermediate_size", kWidth, family.ffn)
                    : config.Int("intermediate_size", kWidth),
      .gated = true};
  const int64_t norms =
      family.norms_of_layer * shape.hidden +
      (family.query_key_norms ? 2 * shape.attention.head_dim : 0);
  AddLayers(shape.layers,
            TransformerLayer("block", shape.hidden, shape.attention, ffn,
                             family.biases, norms),
            &module);
  FinishDecoder(shape, shape.hidden, &module);
  return module;
}

bool Always(int64_t) { return true; }

// Sets the windows of a class all of whose layers have one, if any.
ModuleSpec WithWindows(const ConfigNode& config, ModuleSpec module) {
  SetWindows(config, config.Optional("sliding_window", kVocab).value_or(0),
             Always, &module);
  return module;
}

// Sets Qwen's windows: those of the layers from max_window_layers on.
ModuleSpec WithUpperWindows(const ConfigNode& config, ModuleSpec module) {
  if (!config.Flag("use_sliding_window", false)) return module;
  const int64_t first = config.Int("max_window_layers", {0, kLayers.high}, 28);
  SetWindows(
      config, config.Int("sliding_window", kVocab, 4096),
      [first](int64_t layer) { return layer >= first; }, &module);
  return module;
}

}  // namespace

ModuleSpec ReadLlama(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  return MakeDense(config, ReadDecoderShape(config, {}),
                   {.biases = {.query_key_value = bias,
                               .attention_output = bias,
                               .ffn = config.Flag("mlp_bias", false)}});
}

ModuleSpec ReadMistral(const ConfigNode& config) {
  return WithWindows(
      config, MakeDense(config, ReadDecoderShape(config, {.kv_heads = 8}), {}));
}

ModuleSpec ReadMinistral3(const ConfigNode& config) {
  return WithWindows(
      config,
      MakeDense(config,
                ReadDecoderShape(config, {.kv_heads = 8, .head_dim = 128}),
                {}));
}

ModuleSpec ReadSeedOss(const ConfigNode& config) {
  return MakeDense(
      config, ReadDecoderShape(config, {.kv_heads = 8, .head_dim = 128}),
      {.biases = {.query_key_value = config.Flag("attention_bias", true),
                  .attention_output = config.Flag("attention_out_bias", false),
                  .ffn = config.Flag("mlp_bias", false)}});
}

ModuleSpec ReadSmolLm3(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  ModuleSpec module =
      MakeDense(config, ReadDecoderShape(config, {.kv_heads = 4, .tied = true}),
                {.biases = {.query_key_value = bias,
                            .attention_output = bias,
                            .ffn = config.Flag("mlp_bias", false)}});
  if (config.Flag("use_sliding_window", false)) {
    // Layers without rotary positions have a window.
    const int64_t interval =
        config.Optional("no_rope_layer_interval", kLayers).value_or(4);
    SetWindows(
        config, config.Optional("sliding_window", kVocab).value_or(0),
        [interval](int64_t layer) { return (layer + 1) % interval == 0; },
        &module);
  }
  return module;
}

ModuleSpec ReadErnie45(const ConfigNode& config) {
  const bool bias = config.Flag("use_bias", false);
  return MakeDense(
      config,
      ReadDecoderShape(config, {.kv_heads = 2, .head_dim = 128, .tied = true}),
      {.biases = {bias, bias, bias}});
}

ModuleSpec ReadHunYuanDense(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  return MakeDense(
      config, ReadDecoderShape(config, {}),
      {.biases = {.query_key_value = bias, .attention_output = bias},
       .query_key_norms = true});
}

ModuleSpec ReadGlm4(const ConfigNode& config) {
  return MakeDense(
      config, ReadDecoderShape(config, {.kv_heads = 2, .head_dim = 128}),
      {.biases = {.query_key_value = config.Flag("attention_bias", true)},
       .norms_of_layer = 4});
}

ModuleSpec ReadGlm4vText(const ConfigNode& config) {
  return MakeDense(
      config,
      ReadDecoderShape(config, {.hidden = 4096,
                                .layers = 40,
                                .heads = 32,
                                .kv_heads = 2,
                                .vocab = 151552}),
      {.biases = {.query_key_value = true}, .norms_of_layer = 4, .ffn = 13696});
}

ModuleSpec ReadQwen2(const ConfigNode& config) {
  return WithUpperWindows(
      config, MakeDense(config,
                        ReadDecoderShape(config, {.hidden = 4096,
                                                  .layers = 32,
                                                  .heads = 32,
                                                  .vocab = 151936}),
                        {.biases = {.query_key_value = true}, .ffn = 22016}));
}

ModuleSpec ReadQwen2VlText(const ConfigNode& config) {
  return WithUpperWindows(config,
                          MakeDense(config, ReadDecoderShape(config, {}),
                                    {.biases = {.query_key_value = true}}));
}

ModuleSpec ReadQwen3(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  return WithUpperWindows(
      config,
      MakeDense(config, ReadDecoderShape(config, {.head_dim = 128}),
                {.biases = {.query_key_value = bias, .attention_output = bias},
                 .query_key_norms = true}));
}

ModuleSpec ReadGemma(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  return MakeDense(
      config,
      ReadDecoderShape(config, {.hidden = 3072,
                                .layers = 28,
                                .heads = 16,
                                .kv_heads = 16,
                                .head_dim = 256,
                                .vocab = 256000,
                                .tied = true}),
      {.biases = {.query_key_value = bias, .attention_output = bias},
       .ffn = 24576});
}

ModuleSpec ReadGemma2(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  ModuleSpec module =
      MakeDense(config,
                ReadDecoderShape(config, {.hidden = 2304,
                                          .layers = 26,
                                          .heads = 8,
                                          .kv_heads = 4,
                                          .head_dim = 256,
                                          .vocab = 256000,
                                          .tied = true}),
                {.biases = {.query_key_value = bias, .attention_output = bias},
                 .norms_of_layer = 4,
                 .ffn = 9216});
  SetWindows(
      config, config.Int("sliding_window", kVocab, 4096),
      [](int64_t layer) { return layer % 2 == 0; }, &module);
  return module;
}

ModuleSpec ReadGemma3Text(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  ModuleSpec module =
      MakeDense(config,
                ReadDecoderShape(config, {.heads = 8,
                                          .kv_heads = 4,
                                          .head_dim = 256,
                                          .vocab = 262208,
                                          .tied = true}),
                {.biases = {.query_key_value = bias, .attention_output = bias},
                 .query_key_norms = true,
                 .norms_of_layer = 4});
  // One layer of each group attends to all tokens: the last.
  const int64_t group =
      config.Optional("sliding_window_pattern", kLayers).value_or(6);
  SetWindows(
      config, config.Int("sliding_window", kVocab, 4096),
      [group](int64_t layer) { return (layer + 1) % group != 0; }, &module);
  return module;
}

ModuleSpec ReadOlmo2(const ConfigNode& config) {
  const bool bias = config.Flag("attention_bias", false);
  const DecoderShape shape = ReadDecoderShape(config, {});
  ModuleSpec module =
      MakeDense(config, shape,
                {.biases = {.query_key_value = bias, .attention_output = bias},
                 .norms_of_layer = 2});
  // Norms of all queries and of all keys at once.
  for (LayerSpec& layer : module.layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    layer.attention.query_key_norms = true;
    layer.vector_parameters +=
        (layer.attention.heads + layer.attention.kv_heads) *
        layer.attention.head_dim;
  }
  return module;
}

ModuleSpec ReadOlmo3(const ConfigNode& config) {
  ModuleSpec module = ReadOlmo2(config);
  SetWindows(
      config, config.Int("sliding_window", kVocab, 4096),
      [](int64_t layer) { return (layer + 1) % 4 != 0; }, &module);
  return module;
}

ModuleSpec ReadPhi3(const ConfigNode& config) {
  return WithWindows(config,
                     MakeDense(config, ReadDecoderShape(config, {}), {}));
}

ModuleSpec ReadPhi4MultimodalText(const ConfigNode& config) {
  CheckLayerTypes(config, kSlidingAttention);
  return WithWindows(
      config,
      MakeDense(config,
                ReadDecoderShape(config,
                                 {.heads = 32, .kv_heads = 8, .vocab = 200064}),
                {}));
}

ModuleSpec ReadInternLm2(const ConfigNode& config) {
  const bool bias = config.Flag("bias", false);
  return MakeDense(
      config, ReadDecoderShape(config, {}),
      {.biases = {.query_key_value = bias, .attention_output = bias}});
}

}  // namespace pipeloom::formats
