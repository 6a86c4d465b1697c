// Phi-4-multimodal: a SigLIP encoder, a Conformer for sound, and a language
// model. The adapters of its checkpoint are not part of the class.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/decoder_shape.h"
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

// The sizes of the audio encoder.
struct AudioSizes {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t ffn = 0;
  int64_t reduction = 0;      // Frames that become one.
  int64_t channels = 0;       // Channels of the convolutions for it.
  int64_t rows = 0;           // Rows of the mel spectrum.
  int64_t bias_distance = 0;  // Positions to each side.
  bool is_symmetric = false;  // Whether both sides share their biases.
  int64_t outer = 0;
  int64_t inner = 0;
  int64_t multiplier = 1;
  int64_t kernel = 0;
  int64_t blocks = 0;
  int64_t stacked = 1;  // Tokens that the projector takes at a time.
};

// Reads the sizes as transformers names them.
AudioSizes SizesOf(const ConfigNode& audio) {
  AudioSizes sizes;
  sizes.width = audio.Int("hidden_size", kWidth, 1024);
  sizes.heads = audio.Int("num_attention_heads", kHeads, 16);
  HeadDim(audio, "num_attention_heads", sizes.width, sizes.heads);
  sizes.ffn = audio.Int("intermediate_size", kWidth, 1536);
  sizes.reduction = audio.Int("time_reduction", {2, 1024}, 8);
  sizes.channels = audio.Int("nemo_conv_channels", kChannels, 1024);
  sizes.rows = audio.Int("input_size", {1, 4096}, 80);
  sizes.bias_distance = audio.Int("bias_max_distance", kCount, 1000);
  sizes.is_symmetric = audio.Flag("bias_symmetric", false);
  sizes.outer = audio.Int("ext_pw_out_channel", kChannels, 1024);
  sizes.inner = audio.Int("depthwise_separable_out_channel", kChannels, 1024);
  sizes.multiplier = audio.Int("depthwise_multiplier", {1, 64}, 1);
  sizes.kernel = audio.Int("kernel_size", {1, 4096}, 3);
  sizes.blocks = audio.Int("num_blocks", kLayers, 24);
  sizes.stacked = audio.Int("downsample_rate", {1, 64}, 1);
  return sizes;
}

// Returns the convolutions that reduce the frames, with the product into the
// encoder's width.
LayerSpec Subsampling(const AudioSizes& sizes) {
  const int64_t channels = sizes.channels;
  int64_t rows = sizes.rows;
  int64_t vectors =
      9 * channels + channels;  // The first has one input channel.
  bool is_first = true;
  for (int64_t left = sizes.reduction; left > 1; left /= 2) {
    rows = (rows + 1) / 2;
    if (!is_first) {
      vectors += 9 * channels + channels + channels * channels + channels;
    }
    is_first = false;
  }
  return LinearsLayer("mel_convolutions", {{channels * rows, sizes.width}},
                      /*bias=*/true, vectors);
}

ModuleSpec MakeAudio(const AudioSizes& sizes, const ConfigNode& config,
                     int64_t hidden) {
  ModuleSpec module;
  module.name = "audio_encoder";
  module.role = ModuleRole::kEncoder;
  const int64_t width = sizes.width;
  if (sizes.reduction % 2 != 0) {
    config.Fail("time_reduction", "must be even");
  }
  module.layers.push_back(Subsampling(sizes));
  // One relative position table for all blocks.
  LastLayer(&module).vector_parameters +=
      sizes.bias_distance * (sizes.is_symmetric ? 1 : 2) * sizes.heads;
  // Both feed-forward parts, the norms of each part and of the block, and the
  // bias of the second part's output.
  const LayerSpec block =
      TransformerLayer("block", width, FullAttention(width, sizes.heads),
                       {.hidden = 2 * sizes.ffn, .gated = true},
                       {true, true, true}, 8 * width + width);
  const int64_t deep = width * sizes.multiplier;
  // The gate's two vectors, the convolution of each channel, and a norm.
  const LayerSpec convolutions = LinearsLayer(
      "convolutions",
      {{width, 2 * sizes.outer}, {deep, sizes.inner}, {width, sizes.outer}},
      /*bias=*/true, 2 * sizes.outer + deep * sizes.kernel + deep + 2 * width);
  for (int64_t i = 0; i < sizes.blocks; ++i) {
    module.layers.push_back(block);
    module.layers.push_back(convolutions);
  }
  const int64_t stacked = width * sizes.stacked;
  module.layers.push_back(LinearsLayer(
      "projector", {{stacked, hidden}, {hidden, hidden}},
      /*bias=*/true, stacked * hidden + hidden + hidden * hidden + hidden));
  LastLayer(&module).on_output_tokens = true;
  config.notes().Assume(
      "the convolutions of the audio encoder have parameters, but no work");
  config.notes().Assume(
      "the two feed-forward parts of an audio block are written as one of "
      "twice the width, before its convolutions");
  config.notes().Assume(
      "the audio projector for samples with images has parameters, but no "
      "work: a sample uses one of the two");
  TokenRule rule;
  rule.kind = TokenRuleKind::kAudioRate;
  rule.modality = Modality::kAudio;
  constexpr double kFramesPerSecond = 100;
  rule.tokens_per_second =
      kFramesPerSecond / static_cast<double>(sizes.reduction);
  rule.output_tokens_per_second = rule.tokens_per_second;
  constexpr double kMaxTokens = 500;  // Longer sounds are cut.
  rule.chunk_seconds = kMaxTokens / rule.tokens_per_second;
  module.token_rules = {rule};
  return module;
}

// Reads the audio encoder as the checkpoint's own code names its sizes.
AudioSizes SizesOfCheckpoint(const ConfigNode& audio,
                             const ConfigNode& embedding) {
  const ConfigNode bias = audio.Child("relative_attention_bias_args");
  const ConfigNode convolution = audio.Child("nemo_conv_settings");
  AudioSizes sizes;
  sizes.width = audio.Int("attention_dim", kWidth, 1024);
  sizes.heads = audio.Int("attention_heads", kHeads, 16);
  HeadDim(audio, "attention_heads", sizes.width, sizes.heads);
  sizes.ffn = audio.Int("linear_units", kWidth, 1536);
  sizes.reduction = audio.Int("time_reduction", {2, 1024}, 8);
  sizes.channels = convolution.Int("conv_channels", kChannels, 1024);
  sizes.rows = audio.Int("input_size", {1, 4096}, 80);
  sizes.bias_distance = bias.Int("t5_bias_max_distance", kCount, 500);
  sizes.outer = audio.Int("ext_pw_out_channel", kChannels, 1024);
  sizes.inner = audio.Int("depthwise_seperable_out_channel", kChannels, 1024);
  sizes.multiplier = audio.Int("depthwise_multiplier", {1, 64}, 1);
  sizes.kernel = audio.Int("kernel_size", {1, 4096}, 3);
  sizes.blocks = audio.Int("num_blocks", kLayers, 24);
  sizes.stacked = embedding.Int("downsample_rate", {1, 64}, 1);
  return sizes;
}

// Notes the adapters that the checkpoint has for a modality.
void NoteAdapter(const ConfigNode& config, absl::string_view field,
                 const DecoderShape& shape, int64_t ffn) {
  const ConfigNode adapter = config.Child(field);
  const int64_t rank = adapter.Optional("r", {0, kWidth.high}).value_or(0);
  const AttentionSpec& a = shape.attention;
  const int64_t heads = a.heads * a.head_dim;
  // Products for queries, keys and values, the output, and both of the
  // feed-forward part.
  const int64_t widths = shape.hidden + heads + 2 * a.kv_heads * a.head_dim +
                         heads + shape.hidden + shape.hidden + 2 * ffn + ffn +
                         shape.hidden;
  if (rank == 0) return;
  config.notes().Assume(absl::StrFormat(
      "%s, an adapter of rank %d with %d parameters, is left out", field, rank,
      rank * widths * shape.layers));
}

}  // namespace

void ReadPhi4Checkpoint(const ConfigNode& config, Draft* draft) {
  const DecoderShape shape =
      ReadDecoderShape(config, {.heads = 32, .kv_heads = 8, .vocab = 200064});
  const ConfigNode layers = config.Child("embd_layer");
  const ConfigNode image = layers.Child("image_embd_layer");
  JsonValue nothing;
  // The encoder's sizes are in the checkpoint's code, not in its configuration.
  const ConfigNode siglip("config.json", &nothing, "image_embd_layer",
                          &draft->notes);
  ModuleSpec vision = ReadVision(siglip, shape.hidden, *draft);
  vision.token_rules[0].side =
      image.Int("crop_size", kPixels, vision.token_rules[0].side);
  const ModuleId seen = draft->Add(std::move(vision));
  const ModuleId heard = draft->Add(MakeAudio(
      SizesOfCheckpoint(config.Child("audio_processor").Child("config"),
                        layers.Child("audio_embd_layer")),
      config, shape.hidden));
  const int64_t ffn = config.Int("intermediate_size", kWidth);
  NoteAdapter(config, "vision_lora", shape, ffn);
  NoteAdapter(config, "speech_lora", shape, ffn);
  const ModuleId backbone = draft->Add(ReadPhi4MultimodalText(config));
  draft->Connect(seen, backbone);
  draft->Connect(heard, backbone);
}

void ReadPhi4Multimodal(const ConfigNode& config, Draft* draft) {
  const int64_t hidden = config.Int("hidden_size", kWidth);
  const ModuleId vision =
      draft->Add(ReadVision(config.Child("vision_config"), hidden, *draft));
  const ModuleId sound = draft->Add(
      MakeAudio(SizesOf(config.Child("audio_config")), config, hidden));
  draft->notes.Assume(
      "LoRA layers for vision and speech are left out, as transformers does; "
      "all layers of the encoders run, also those after the layer that the "
      "language model sees");
  const ModuleId backbone = draft->Add(ReadPhi4MultimodalText(config));
  draft->Connect(vision, backbone);
  draft->Connect(sound, backbone);
}

}  // namespace pipeloom::formats
