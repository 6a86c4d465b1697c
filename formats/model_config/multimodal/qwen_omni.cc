// Qwen2-Audio, and the thinkers of Qwen2.5-Omni and Qwen3-Omni: vision, audio
// and the language model. The talker and the part that makes sound are left
// out.
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/qwen_vision.h"

namespace pipeloom::formats {
namespace {

// The sizes of an encoder of the Whisper type.
struct AudioShape {
  int64_t width = 0;
  int64_t layers = 0;
  LayerSpec block{};
};

AudioShape ReadAudioShape(const ConfigNode& audio, bool key_bias,
                          double tokens_a_second, double chunk_seconds) {
  AudioShape shape;
  shape.width = audio.Int("d_model", kWidth, 1280);
  shape.layers = audio.Int("encoder_layers", kLayers, 32);
  const int64_t heads = audio.Int("encoder_attention_heads", kHeads, 20);
  HeadDim(audio, "encoder_attention_heads", shape.width, heads);
  AttentionSpec attention = FullAttention(shape.width, heads);
  attention.kind = AttentionKind::kWindow;
  attention.window = static_cast<int64_t>(tokens_a_second * chunk_seconds);
  shape.block =
      TransformerLayer("block", shape.width, attention,
                       {.hidden = audio.Int("encoder_ffn_dim", kWidth, 5120)},
                       {true, true, true}, (key_bias ? 4 : 3) * shape.width);
  return shape;
}

ModuleSpec AudioModule(const AudioShape& shape, LayerSpec input,
                       LayerSpec projector, double rate, double out_rate,
                       double chunk_seconds) {
  ModuleSpec module;
  module.name = "audio_encoder";
  module.role = ModuleRole::kEncoder;
  module.layers.push_back(std::move(input));
  AddLayers(shape.layers, shape.block, &module);
  projector.on_output_tokens = true;
  module.layers.push_back(std::move(projector));
  TokenRule rule;
  rule.kind = TokenRuleKind::kAudioRate;
  rule.modality = Modality::kAudio;
  rule.tokens_per_second = rate;
  rule.output_tokens_per_second = out_rate;
  rule.chunk_seconds = chunk_seconds;
  module.token_rules = {rule};
  return module;
}

ConfigNode Thinker(const ConfigNode& config) {
  if (!config.Has("thinker_config")) return config;
  config.notes().Assume(
      "the talker and the part that makes sound are left out: they are trained "
      "on their own");
  return config.Child("thinker_config");
}

// Returns the width of the projector's output.
int64_t OutputWidth(const ConfigNode& audio) {
  return audio.Int("output_dim", kWidth, 3584);
}

// Returns the two convolutions of Whisper, the second of which halves the 100
// frames of a second, and what else has parameters ahead of the layers.
LayerSpec MelConvolutions(const ConfigNode& audio, int64_t width,
                          int64_t other_vectors) {
  const int64_t mels = audio.Int("num_mel_bins", {1, 4096}, 128);
  return LinearsLayer("mel_convolutions",
                      {{3 * mels, width}, {3 * width, width}},
                      /*bias=*/true, other_vectors);
}

void AddText(const ConfigNode& thinker, absl::string_view type,
             const std::vector<ModuleId>& feeding, Draft* draft) {
  const ModuleId backbone =
      AddDecoder(thinker.Child("text_config"), type, feeding, draft);
  draft->LastLayer(backbone).tied = thinker.Flag("tie_word_embeddings", false);
}

}  // namespace

void ReadQwen2Audio(const ConfigNode& config, Draft* draft) {
  const ConfigNode audio = config.Child("audio_config");
  // Positions are learned for the tokens of 30 s.
  const int64_t positions = audio.Int("max_source_positions", kVocab, 1500);
  const double chunk_seconds = static_cast<double>(positions) / 50;
  const AudioShape shape =
      ReadAudioShape(audio, /*key_bias=*/false, 50, chunk_seconds);
  const int64_t hidden =
      config.Child("text_config").Int("hidden_size", kWidth, 4096);
  draft->notes.Assume(
      absl::StrFormat("a recording has the tokens of its length: the class "
                      "pads each to %g s",
                      chunk_seconds));
  const ModuleId sound = draft->Add(AudioModule(
      shape, MelConvolutions(audio, shape.width, positions * shape.width),
      LinearsLayer("projector", {{shape.width, hidden}}, /*bias=*/true,
                   2 * shape.width),
      50, 25, chunk_seconds));
  AddText(config, "qwen2", {sound}, draft);
}

void ReadQwen25Omni(const ConfigNode& config, Draft* draft) {
  const ConfigNode thinker = Thinker(config);
  const ConfigNode audio = thinker.Child("audio_config");
  const ModuleId vision =
      draft->Add(ReadQwen25Vision(thinker.Child("vision_config"), *draft));
  const double chunk_seconds =
      static_cast<double>(audio.Int("n_window", kCount, 100)) / 50;
  const AudioShape shape =
      ReadAudioShape(audio, /*key_bias=*/false, 50, chunk_seconds);
  const int64_t out = OutputWidth(audio);
  const ModuleId sound = draft->Add(
      AudioModule(shape, MelConvolutions(audio, shape.width, 0),
                  // A norm before it; the embeddings of begin and end.
                  LinearsLayer("projector", {{shape.width, out}}, /*bias=*/true,
                               2 * shape.width + 2 * out),
                  50, 25, chunk_seconds));
  AddText(thinker, "qwen2_5_omni_text", {vision, sound}, draft);
}

void ReadQwen3Omni(const ConfigNode& config, Draft* draft) {
  const ConfigNode thinker = Thinker(config);
  const ConfigNode audio = thinker.Child("audio_config");
  const ModuleId vision =
      draft->Add(ReadQwen3Vision(thinker.Child("vision_config"), *draft));
  // Three convolutions halve the 100 frames of a second each, rounding up.
  constexpr double kRate = 13;
  const double chunk_seconds =
      static_cast<double>(audio.Int("n_window_infer", kCount, 800)) / 100;
  const AudioShape shape =
      ReadAudioShape(audio, /*key_bias=*/true, kRate, chunk_seconds);
  const int64_t mels = audio.Int("num_mel_bins", {1, 4096}, 128);
  const int64_t channels = audio.Int("downsample_hidden_size", {1, 65536}, 480);
  const int64_t rows = (((mels + 1) / 2 + 1) / 2 + 1) / 2;
  // The convolutions of one input channel and of `channels`, with biases.
  LayerSpec input = LinearsLayer(
      "mel_convolutions", {{channels * rows, shape.width}}, /*bias=*/false,
      9 * channels + channels + 2 * (9 * channels * channels + channels));
  draft->notes.Assume(
      "the convolutions of the audio encoder have parameters, but no work");
  const ModuleId sound =
      draft->Add(AudioModule(shape, std::move(input),
                             LinearsLayer("projector",
                                          {{shape.width, shape.width},
                                           {shape.width, OutputWidth(audio)}},
                                          /*bias=*/true, 2 * shape.width),
                             kRate, kRate, chunk_seconds));
  AddText(thinker, "qwen3_omni_moe_text", {vision, sound}, draft);
}

}  // namespace pipeloom::formats
