// Kimi-VL and Kimi K2.5: MoonViT, a vision encoder of any resolution with
// learned positions and rotary ones, and a language model of DeepSeek-V3's
// kind.
#include <cstdint>
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"

namespace pipeloom::formats {
namespace {

ModuleSpec ReadMoonVit(const ConfigNode& vision, int64_t hidden,
                       const Draft& draft) {
  const int64_t width = vision.Int("hidden_size", kWidth, 1152);
  const int64_t heads = vision.Int("num_attention_heads", kHeads, 16);
  HeadDim(vision, "num_attention_heads", width, heads);
  const int64_t ffn = vision.Int("intermediate_size", kWidth, 4304);
  const int64_t patch = vision.Int("patch_size", {1, 1024}, 14);
  const int64_t merge = vision.FirstInt("merge_kernel_size", {1, 64}, 2);
  const int64_t rows = vision.Int("init_pos_emb_height", {1, 4096}, 64);
  const int64_t columns = vision.Int("init_pos_emb_width", {1, 4096}, 64);
  ModuleSpec module;
  module.name = "vision_encoder";
  module.role = ModuleRole::kEncoder;
  // With the table of positions, which is scaled to each image.
  module.layers.push_back(LinearsLayer("patch_embedding",
                                       {{3 * patch * patch, width}},
                                       /*bias=*/true, rows * columns * width));
  AddLayers(vision.Int("num_hidden_layers", kLayers, 27),
            TransformerLayer("block", width, FullAttention(width, heads),
                             {.hidden = ffn}, {true, true, true}, 4 * width),
            &module);
  // The encoder's last norm and the projector's, both of a patch's width.
  const int64_t merged = merge * merge * width;
  module.layers.push_back(LinearsLayer("projector",
                                       {{merged, merged}, {merged, hidden}},
                                       /*bias=*/true, 4 * width));
  LastLayer(&module).on_output_tokens = true;
  TokenRule image;
  image.kind = TokenRuleKind::kDynamicResolution;
  image.modality = Modality::kImage;
  image.patch = patch;
  image.merge = merge;
  image.min_tokens = 1;
  image.max_tokens =
      draft.processor.Optional("in_token_limit", {1, 1 << 24}).value_or(4096) /
      (merge * merge);
  if (image.max_tokens < 1) image.max_tokens = 1;
  module.token_rules = {image};
  draft.notes.Assume(
      "sides of images are rounded to the nearest whole token, where the "
      "processor pads them up");
  return module;
}

}  // namespace

void ReadKimiVl(const ConfigNode& config, Draft* draft) {
  const ConfigNode text = config.Child("text_config");
  const int64_t hidden = text.Int("hidden_size", kWidth);
  const ModuleId vision =
      draft->Add(ReadMoonVit(config.Child("vision_config"), hidden, *draft));
  AddDecoder(text, "deepseek_v3", {vision}, draft);
}

}  // namespace pipeloom::formats
