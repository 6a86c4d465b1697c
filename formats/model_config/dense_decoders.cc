#include "formats/model_config/dense_decoders.h"

#include "formats/model_config/decoder_shape.h"

namespace pipeloom::formats {
namespace {

// How a family differs from Llama.
struct DenseFamily {
  Biases biases{};
  bool query_key_norms = false;  // Norms of a head's width.
  int64_t norms_of_layer = 2;
};

ModuleSpec MakeDense(const ConfigNode& config, const DecoderShape& shape,
                     const DenseFamily& family) {
  ModuleSpec module = BeginDecoder(shape);
  const FfnSpec ffn{.hidden = config.Int("intermediate_size", kWidth),
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

void NoteWindowIf(bool used, const ConfigNode& config) {
  if (!used) return;
  if (const auto window = config.Optional("sliding_window", kVocab)) {
    NoteSlidingWindow(config, *window);
  }
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
  NoteWindowIf(true, config);
  return MakeDense(config, ReadDecoderShape(config, {.kv_heads = 8}), {});
}

ModuleSpec ReadQwen2(const ConfigNode& config) {
  NoteWindowIf(config.Flag("use_sliding_window", false), config);
  return MakeDense(config, ReadDecoderShape(config, {}),
                   {.biases = {.query_key_value = true}});
}

ModuleSpec ReadQwen3(const ConfigNode& config) {
  NoteWindowIf(config.Flag("use_sliding_window", false), config);
  const bool bias = config.Flag("attention_bias", false);
  return MakeDense(
      config, ReadDecoderShape(config, {.head_dim = 128}),
      {.biases = {.query_key_value = bias, .attention_output = bias},
       .query_key_norms = true});
}

ModuleSpec ReadGemma3Text(const ConfigNode& config) {
  NoteSlidingWindow(config, config.Int("sliding_window", kVocab, 4096));
  const bool bias = config.Flag("attention_bias", false);
  return MakeDense(
      config,
      ReadDecoderShape(config, {.heads = 8,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .vocab = 262208,
                                .tied = true}),
      {.biases = {.query_key_value = bias, .attention_output = bias},
       .query_key_norms = true,
       .norms_of_layer = 4});
}

ModuleSpec ReadPhi3(const ConfigNode& config) {
  NoteWindowIf(true, config);
  return MakeDense(config, ReadDecoderShape(config, {}), {});
}

ModuleSpec ReadPhi4MultimodalText(const ConfigNode& config) {
  NoteWindowIf(true, config);
  return MakeDense(
      config,
      ReadDecoderShape(config, {.heads = 32, .kv_heads = 8, .vocab = 200064}),
      {});
}

ModuleSpec ReadInternLm2(const ConfigNode& config) {
  const bool bias = config.Flag("bias", false);
  return MakeDense(
      config, ReadDecoderShape(config, {}),
      {.biases = {.query_key_value = bias, .attention_output = bias}});
}

}  // namespace pipeloom::formats
