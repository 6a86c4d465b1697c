#include "formats/model_config/multimodal/vision_transformer.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

// Reads the sides of image and patch, and begins the module.
VisionEncoder Begin(const ConfigNode& vision, int64_t width, int64_t image_side,
                    int64_t patch_side) {
  VisionEncoder encoder;
  encoder.width = width;
  encoder.image_side = vision.FirstInt("image_size", kPixels, image_side);
  encoder.patch_side = vision.FirstInt("patch_size", kPixels, patch_side);
  encoder.patches_a_row =
      encoder.image_side / std::max<int64_t>(encoder.patch_side, 1);
  if (encoder.patches_a_row == 0) {
    vision.Fail("patch_size",
                absl::StrFormat("is %d; it must be at most image_size, which "
                                "is %d",
                                encoder.patch_side, encoder.image_side));
  }
  encoder.module.name = "vision_encoder";
  encoder.module.role = ModuleRole::kEncoder;
  return encoder;
}

int64_t PatchValues(const ConfigNode& vision, const VisionEncoder& encoder) {
  const int64_t channels =
      vision.Has("num_channels") ? vision.Int("num_channels", {1, 64}) : 3;
  return channels * encoder.patch_side * encoder.patch_side;
}

}  // namespace

VisionEncoder ReadSiglip(const ConfigNode& vision,
                         const SiglipDefaults& defaults) {
  const int64_t width = vision.Int("hidden_size", kWidth, defaults.width);
  VisionEncoder encoder =
      Begin(vision, width, defaults.image_side, defaults.patch_side);
  const int64_t heads =
      vision.Int("num_attention_heads", kHeads, defaults.heads);
  HeadDim(vision, "num_attention_heads", width, heads);
  const int64_t ffn = vision.Int("intermediate_size", kWidth, defaults.ffn);
  encoder.module.layers.push_back(
      LinearsLayer("patch_embedding", {{PatchValues(vision, encoder), width}},
                   /*bias=*/true, encoder.patches() * width));
  AddLayers(vision.Int("num_hidden_layers", kLayers, defaults.layers),
            TransformerLayer("block", width, FullAttention(width, heads),
                             {.hidden = ffn}, {true, true, true}, 4 * width),
            &encoder.module);
  // The norm at the end is counted with the last layer.
  LastLayer(&encoder.module).vector_parameters += 2 * width;
  if (vision.Flag("vision_use_head", defaults.pooling_head)) {
    // Attention to one learned token, a norm and a feed-forward part.
    LastLayer(&encoder.module).vector_parameters +=
        width + 4 * width * width + 4 * width + 2 * width + 2 * width * ffn +
        ffn + width;
    vision.notes().Assume(
        "the vision encoder's pooling head has parameters, but no work: the "
        "language model does not use its output");
  }
  return encoder;
}

VisionEncoder ReadClip(const ConfigNode& vision, const ClipDefaults& defaults) {
  const int64_t width = vision.Int("hidden_size", kWidth, defaults.width);
  VisionEncoder encoder =
      Begin(vision, width, defaults.image_side, defaults.patch_side);
  const int64_t heads =
      vision.Int("num_attention_heads", kHeads, defaults.heads);
  HeadDim(vision, "num_attention_heads", width, heads);
  const int64_t ffn = vision.Int("intermediate_size", kWidth, defaults.ffn);
  // The class token, a position for it and every patch, and the first norm.
  encoder.module.layers.push_back(LinearsLayer(
      "patch_embedding", {{PatchValues(vision, encoder), width}},
      /*bias=*/false, width + (encoder.patches() + 1) * width + 2 * width));
  AddLayers(vision.Int("num_hidden_layers", kLayers, defaults.layers),
            TransformerLayer("block", width, FullAttention(width, heads),
                             {.hidden = ffn}, {true, true, true}, 4 * width),
            &encoder.module);
  // The norm at the end, whose output the language model does not use.
  LastLayer(&encoder.module).vector_parameters += 2 * width;
  return encoder;
}

VisionEncoder ReadPixtral(const ConfigNode& vision) {
  const int64_t width = vision.Int("hidden_size", kWidth, 1024);
  VisionEncoder encoder = Begin(vision, width, 1024, 16);
  const int64_t heads = vision.Int("num_attention_heads", kHeads, 16);
  HeadDim(vision, "num_attention_heads", width, heads);
  encoder.module.layers.push_back(
      LinearsLayer("patch_embedding", {{PatchValues(vision, encoder), width}},
                   /*bias=*/false, width));
  AddLayers(
      vision.Int("num_hidden_layers", kLayers, 24),
      TransformerLayer("block", width, FullAttention(width, heads),
                       {.hidden = vision.Int("intermediate_size", kWidth, 4096),
                        .gated = true},
                       {}, 2 * width),
      &encoder.module);
  return encoder;
}

}  // namespace pipeloom::formats
