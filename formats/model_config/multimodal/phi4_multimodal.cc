// Phi-4-multimodal: a SigLIP encoder, a Conformer for sound, and a language
// model. The adapters of its checkpoint are not part of the class.
#include <algorithm>
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/dense_decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {
namespace {

constexpr ConfigRange kChannels{1, 1 << 16};

ModuleSpec ReadVision(const ConfigNode& vision, int64_t hidden,
                      const Draft& draft) {
  VisionEncoder encoder = ReadSiglip(vision, {.width = 1152,
                                              .ffn = 4304,
                                              .layers = 27,
                                              .heads = 16,
                                              .image_side = 448,
                                              .patch_side = 14});
  // The separators of rows and of views are counted with the projector.
  encoder.module.layers.push_back(
      LinearsLayer("projector", {{encoder.width, hidden}, {hidden, hidden}},
                   /*bias=*/true, 2 * encoder.width));
  LastLayer(&encoder.module).on_output_tokens = true;
  const int64_t row = (encoder.patches_a_row + 1) / 2;
  TokenRule image;
  image.kind = TokenRuleKind::kTiles;
  image.modality = Modality::kImage;
  image.side = encoder.image_side;
  image.max_tiles =
      draft.processor.Optional("dynamic_hd", {1, 4096}).value_or(36);
  image.tokens_per_tile = encoder.patches();
  image.output_tokens_per_tile = row * row;
  image.extra_tokens = row + 1;
  draft.notes.Assume(
      "images are cut into tiles by the nearest aspect ratio, where the "
      "processor pads to whole tiles; separators of the tiles' rows are not "
      "counted");
  encoder.module.token_rules = {image};
  return std::move(encoder.module);
}

// Returns the convolutions that reduce the frames `reduction` times, with the
// product into `width`.
LayerSpec ReadSubsampling(const ConfigNode& audio, int64_t width,
                          int64_t reduction) {
  const int64_t channels = audio.Int("nemo_conv_channels", kChannels, 1024);
  int64_t rows = audio.Int("input_size", {1, 4096}, 80);
  int64_t vectors =
      9 * channels + channels;  // The first has one input channel.
  bool is_first = true;
  for (int64_t left = reduction; left > 1; left /= 2) {
    rows = (rows + 1) / 2;
    if (!is_first) {
      vectors += 9 * channels + channels + channels * channels + channels;
    }
    is_first = false;
  }
  audio.notes().Assume(
      "the convolutions of the audio encoder have parameters, but no work");
  return LinearsLayer("mel_convolutions", {{channels * rows, width}},
                      /*bias=*/true, vectors);
}

ModuleSpec ReadAudio(const ConfigNode& audio, int64_t hidden) {
  ModuleSpec module;
  module.name = "audio_encoder";
  module.role = ModuleRole::kEncoder;
  const int64_t width = audio.Int("hidden_size", kWidth, 1024);
  const int64_t heads = audio.Int("num_attention_heads", kHeads, 16);
  HeadDim(audio, "num_attention_heads", width, heads);
  const int64_t ffn = audio.Int("intermediate_size", kWidth, 1536);
  const int64_t reduction = audio.Int("time_reduction", {2, 1024}, 8);
  if (reduction % 2 != 0) audio.Fail("time_reduction", "must be even");
  module.layers.push_back(ReadSubsampling(audio, width, reduction));
  // One relative position table for all blocks.
  LastLayer(&module).vector_parameters +=
      audio.Int("bias_max_distance", kCount, 1000) *
      (audio.Flag("bias_symmetric", false) ? 1 : 2) * heads;
  // Both feed-forward parts, the norms of each part and of the block, and the
  // bias of the second part's output.
  const LayerSpec block =
      TransformerLayer("block", width, FullAttention(width, heads),
                       {.hidden = 2 * ffn, .gated = true}, {true, true, true},
                       8 * width + width);
  audio.notes().Assume(
      "the two feed-forward parts of an audio block are written as one of "
      "twice the width, before its convolutions");
  const int64_t outer = audio.Int("ext_pw_out_channel", kChannels, 1024);
  const int64_t inner =
      audio.Int("depthwise_separable_out_channel", kChannels, 1024);
  const int64_t deep = width * audio.Int("depthwise_multiplier", {1, 64}, 1);
  const int64_t kernel = audio.Int("kernel_size", {1, 4096}, 3);
  // The gate's two vectors, the convolution of each channel, and a norm.
  const LayerSpec convolutions = LinearsLayer(
      "convolutions", {{width, 2 * outer}, {deep, inner}, {width, outer}},
      /*bias=*/true, 2 * outer + deep * kernel + deep + 2 * width);
  const int64_t blocks = audio.Int("num_blocks", kLayers, 24);
  for (int64_t i = 0; i < blocks; ++i) {
    module.layers.push_back(block);
    module.layers.push_back(convolutions);
  }
  const int64_t stacked = width * audio.Int("downsample_rate", {1, 64}, 1);
  module.layers.push_back(LinearsLayer(
      "projector", {{stacked, hidden}, {hidden, hidden}},
      /*bias=*/true, stacked * hidden + hidden + hidden * hidden + hidden));
  LastLayer(&module).on_output_tokens = true;
  audio.notes().Assume(
      "the audio projector for samples with images has parameters, but no "
      "work: a sample uses one of the two");
  TokenRule rule;
  rule.kind = TokenRuleKind::kAudioRate;
  rule.modality = Modality::kAudio;
  constexpr double kFramesPerSecond = 100;
  rule.tokens_per_second = kFramesPerSecond / static_cast<double>(reduction);
  rule.output_tokens_per_second = rule.tokens_per_second;
  constexpr double kMaxTokens = 500;  // Longer sounds are cut.
  rule.chunk_seconds = kMaxTokens / rule.tokens_per_second;
  module.token_rules = {rule};
  return module;
}

}  // namespace

void ReadPhi4Multimodal(const ConfigNode& config, Draft* draft) {
  const int64_t hidden = config.Int("hidden_size", kWidth);
  const ModuleId vision =
      draft->Add(ReadVision(config.Child("vision_config"), hidden, *draft));
  const ModuleId sound =
      draft->Add(ReadAudio(config.Child("audio_config"), hidden));
  draft->notes.Assume(
      "LoRA layers for vision and speech are left out, as transformers does; "
      "all layers of the encoders run, also those after the layer that the "
      "language model sees");
  const ModuleId backbone = draft->Add(ReadPhi4MultimodalText(config));
  draft->Connect(vision, backbone);
  draft->Connect(sound, backbone);
}

}  // namespace pipeloom::formats
