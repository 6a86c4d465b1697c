// Whisper: an encoder of recordings, and a language model that attends to what
// it makes.
#include <utility>

#include "absl/strings/str_format.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/decoder_shape.h"

namespace pipeloom::formats {
namespace {

constexpr int64_t kTokensOfASecond = 50;  // Two frames of 10 ms each.

// Biases of all products but those that make keys.
Biases AllBiases() {
  return {.query_key_value = true, .attention_output = true, .ffn = true};
}

ModuleSpec ReadRecordings(const ConfigNode& config, int64_t width) {
  const int64_t layers = config.Int("encoder_layers", kLayers, 4);
  const int64_t heads = config.Int("encoder_attention_heads", kHeads, 6);
  const int64_t mels = config.Int("num_mel_bins", {1, 4096}, 80);
  // Positions are of the tokens of 30 s.
  const int64_t positions = config.Int("max_source_positions", kVocab, 1500);
  HeadDim(config, "encoder_attention_heads", width, heads);
  AttentionSpec attention = FullAttention(width, heads);
  attention.kind = AttentionKind::kWindow;
  attention.window = positions;
  ModuleSpec module;
  module.name = "audio_encoder";
  module.role = ModuleRole::kEncoder;
  // Two convolutions, the second of which halves the 100 frames of a second;
  // the positions; and the norm behind the layers.
  module.layers.push_back(
      LinearsLayer("mel_convolutions", {{3 * mels, width}, {3 * width, width}},
                   /*bias=*/true, positions * width + 2 * width));
  AddLayers(
      layers,
      TransformerLayer("block", width, attention,
                       {.hidden = config.Int("encoder_ffn_dim", kWidth, 1536)},
                       AllBiases(), (4 - 1) * width),
      &module);
  TokenRule rule;
  rule.kind = TokenRuleKind::kAudioRate;
  rule.modality = Modality::kAudio;
  rule.tokens_per_second = kTokensOfASecond;
  rule.output_tokens_per_second = kTokensOfASecond;
  rule.chunk_seconds =
      static_cast<double>(positions) / static_cast<double>(kTokensOfASecond);
  module.token_rules = {rule};
  config.notes().Assume(
      absl::StrFormat("a recording has the tokens of its length: the class "
                      "pads each to %g s",
                      rule.chunk_seconds));
  return module;
}

ModuleSpec ReadTranscripts(const ConfigNode& config, int64_t width) {
  DecoderShape shape;
  shape.hidden = width;
  shape.vocab = config.Int("vocab_size", kVocab, 51865);
  shape.tied = config.Flag("tie_word_embeddings", true);
  const int64_t layers = config.Int("decoder_layers", kLayers, 4);
  const int64_t heads = config.Int("decoder_attention_heads", kHeads, 6);
  const int64_t head_dim =
      HeadDim(config, "decoder_attention_heads", width, heads);
  shape.attention = FullAttention(width, heads);
  shape.attention.kind = AttentionKind::kCausal;
  ModuleSpec module = BeginDecoder(shape);
  LastLayer(&module).vector_parameters =
      config.Int("max_target_positions", kVocab, 448) * width;
  // Three norms; the biases of the attention to the encoder's tokens, which
  // makes keys without one, too.
  LayerSpec block =
      TransformerLayer("block", width, shape.attention,
                       {.hidden = config.Int("decoder_ffn_dim", kWidth, 1536)},
                       AllBiases(), (6 - 1 + 3) * width);
  block.cross_attention = {
      .heads = heads, .head_dim = head_dim, .context_width = width};
  AddLayers(layers, block, &module);
  FinishDecoder(shape, 2 * width, &module);
  return module;
}

}  // namespace

void ReadWhisper(const ConfigNode& config, Draft* draft) {
  const int64_t width = config.Int("d_model", kWidth, 384);
  const ModuleId recordings = draft->Add(ReadRecordings(config, width));
  const ModuleId transcripts = draft->Add(ReadTranscripts(config, width));
  draft->Connect(recordings, transcripts, /*as_context=*/true);
}

}  // namespace pipeloom::formats
