#include "formats/model_config/multimodal/qwen_vision.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace pipeloom::formats {
namespace {

// The sizes that all versions have.
struct Patches {
  int64_t side = 0;    // px
  int64_t merge = 0;   // per side
  int64_t values = 0;  // Channels x frames x pixels of a patch.
};

Patches ReadPatches(const ConfigNode& vision, int64_t side) {
  Patches patches;
  patches.side = vision.Int("patch_size", {1, 4096}, side);
  patches.merge = vision.Int("spatial_merge_size", {1, 64}, 2);
  patches.values =
      vision.Int(vision.Has("in_chans") ? "in_chans" : "in_channels", {1, 64},
                 3) *
      vision.Int("temporal_patch_size", {1, 64}, 2) * patches.side *
      patches.side;
  return patches;
}

ModuleSpec BeginEncoder(const Patches& patches, int64_t width, bool bias,
                        int64_t other_vectors) {
  ModuleSpec module;
  module.name = "vision_encoder";
  module.role = ModuleRole::kEncoder;
  module.layers.push_back(LinearsLayer(
      "patch_embedding", {{patches.values, width}}, bias, other_vectors));
  return module;
}

// Adds the rules of images and videos. Limits in pixels of the processor's
// configuration are of `frames` frames; `least` and `most` are the tokens of an
// image without one.
void AddTokenRules(const Patches& patches, int64_t frames, int64_t least,
                   int64_t most, const Draft& draft, ModuleSpec* module) {
  const int64_t factor = patches.side * patches.merge;
  const int64_t area = factor * factor * frames;
  const ConfigNode& processor = draft.processor;
  const ConfigNode size = processor.Child("size");
  constexpr ConfigRange kArea{1, int64_t{1} << 40};
  TokenRule image;
  image.kind = TokenRuleKind::kDynamicResolution;
  image.modality = Modality::kImage;
  image.patch = patches.side;
  image.merge = patches.merge;
  image.min_tokens = least;
  image.max_tokens = most;
  if (processor.Has("min_pixels") && processor.Has("max_pixels")) {
    image.min_tokens = processor.Int("min_pixels", kArea) / area;
    image.max_tokens = processor.Int("max_pixels", kArea) / area;
  } else if (size.Has("shortest_edge") && size.Has("longest_edge")) {
    image.min_tokens = size.Int("shortest_edge", kArea) / area;
    image.max_tokens = size.Int("longest_edge", kArea) / area;
  } else {
    draft.notes.Assume(
        absl::StrFormat("images have %d to %d tokens, as no "
                        "preprocessor_config.json was given",
                        least, most));
  }
  image.max_tokens = std::max<int64_t>(image.max_tokens, 1);
  image.min_tokens = std::clamp<int64_t>(image.min_tokens, 1, image.max_tokens);
  TokenRule video = image;
  video.modality = Modality::kVideo;
  video.min_tokens = 128;
  video.max_tokens = 768;
  video.max_total_tokens = 115200;
  video.fps = 2;
  video.min_frames = 4;
  video.max_frames = 768;
  video.frame_group = 2;
  draft.notes.Assume(
      "videos are sampled at 2 frames a second, 4 to 768 frames, 128 to 768 "
      "tokens for two frames, at most 115,200 tokens in all");
  module->token_rules = {image, video};
}

// Adds the merger: a norm of `norm` parameters and two products.
void AddMerger(const Patches& patches, int64_t width, int64_t out, int64_t norm,
               ModuleSpec* module) {
  const int64_t merged = width * patches.merge * patches.merge;
  module->layers.push_back(LinearsLayer(
      "merger", {{merged, merged}, {merged, out}}, /*bias=*/true, norm));
  LastLayer(module).on_output_tokens = true;
}

}  // namespace

ModuleSpec ReadQwen2Vision(const ConfigNode& vision, const Draft& draft) {
  const Patches patches = ReadPatches(vision, 14);
  const int64_t width = vision.Int("embed_dim", kWidth, 1280);
  const int64_t heads = vision.Int("num_heads", kHeads, 16);
  HeadDim(vision, "num_heads", width, heads);
  const auto ffn = static_cast<int64_t>(static_cast<double>(width) *
                                        vision.Number("mlp_ratio", 0, 64, 4));
  ModuleSpec module = BeginEncoder(patches, width, /*bias=*/false, 0);
  AddLayers(vision.Int("depth", kLayers, 32),
            TransformerLayer("block", width, FullAttention(width, heads),
                             {.hidden = ffn}, {true, true, true}, 4 * width),
            &module);
  AddMerger(patches, width, vision.Int("hidden_size", kWidth, 3584), 2 * width,
            &module);
  AddTokenRules(patches, 1, 4, 16384, draft, &module);
  return module;
}

ModuleSpec ReadQwen25Vision(const ConfigNode& vision, const Draft& draft) {
  const Patches patches = ReadPatches(vision, 14);
  const int64_t width = vision.Int("hidden_size", kWidth, 3584);
  const int64_t heads = vision.Int("num_heads", kHeads, 16);
  HeadDim(vision, "num_heads", width, heads);
  const FfnSpec ffn{.hidden = vision.Int("intermediate_size", kWidth, 3420),
                    .gated = true};
  ModuleSpec module = BeginEncoder(patches, width, /*bias=*/false, 0);
  std::vector<int64_t> full =
      vision.Ints("fullatt_block_indexes", {0, kLayers.high});
  if (!vision.Has("fullatt_block_indexes")) {
    full = {7, 15, 23, 31};
    vision.notes().Assume(
        "vision_config.fullatt_block_indexes = 7, 15, 23, 31");
  }
  AttentionSpec attention = FullAttention(width, heads);
  const LayerSpec whole = TransformerLayer("block", width, attention, ffn,
                                           {true, true, true}, 2 * width);
  // A window in whole merged tokens, in patches.
  const int64_t factor = patches.side * patches.merge;
  const int64_t side =
      vision.Int("window_size", kPixels, 112) / factor * patches.merge;
  if (side == 0) {
    vision.Fail("window_size",
                absl::StrFormat("is smaller than a token of %d px", factor));
  }
  attention.kind = AttentionKind::kWindow;
  attention.window = side * side;
  const LayerSpec window = TransformerLayer("window_block", width, attention,
                                            ffn, {true, true, true}, 2 * width);
  const int64_t depth = vision.Int("depth", kLayers, 32);
  for (int64_t i = 0; i < depth; ++i) {
    const bool is_full = std::find(full.begin(), full.end(), i) != full.end();
    module.layers.push_back(is_full ? whole : window);
  }
  AddMerger(patches, width, vision.Int("out_hidden_size", kWidth, 3584), width,
            &module);
  AddTokenRules(patches, 1, 4, 16384, draft, &module);
  return module;
}

ModuleSpec ReadQwen3Vision(const ConfigNode& vision, const Draft& draft,
                           std::vector<int64_t> default_taps) {
  const Patches patches = ReadPatches(vision, 16);
  const int64_t width = vision.Int("hidden_size", kWidth, 1152);
  const int64_t heads = vision.Int("num_heads", kHeads, 16);
  HeadDim(vision, "num_heads", width, heads);
  const int64_t out = vision.Int("out_hidden_size", kWidth, 3584);
  ModuleSpec module =
      BeginEncoder(patches, width, /*bias=*/true,
                   vision.Int("num_position_embeddings", kVocab, 2304) * width);
  const LayerSpec block = TransformerLayer(
      "block", width, FullAttention(width, heads),
      {.hidden = vision.Int("intermediate_size", kWidth, 4304)},
      {true, true, true}, 4 * width);
  const int64_t depth = vision.Int("depth", kLayers, 27);
  std::vector<int64_t> taps =
      vision.Ints("deepstack_visual_indexes", {0, kLayers.high});
  if (!vision.Has("deepstack_visual_indexes") && !default_taps.empty()) {
    taps = std::move(default_taps);
    vision.notes().Assume("vision_config.deepstack_visual_indexes = 8, 16, 24");
  }
  const int64_t merged = width * patches.merge * patches.merge;
  AddLayers(depth, block, &module);
  for (size_t i = 0; i < taps.size(); ++i) {
    module.layers.push_back(LinearsLayer("deepstack_merger",
                                         {{merged, merged}, {merged, out}},
                                         /*bias=*/true, 2 * merged));
    LastLayer(&module).on_output_tokens = true;
  }
  if (!taps.empty()) {
    vision.notes().Assume(absl::StrFormat(
        "the %d deepstack mergers run after the last vision block, and their "
        "tokens reach the language model with those of the merger: a model "
        "file has no edges into later layers",
        taps.size()));
  }
  AddMerger(patches, width, out, 2 * width, &module);
  AddTokenRules(patches, 1, 64, 16384, draft, &module);
  return module;
}

ModuleSpec ReadGlm4Vision(const ConfigNode& vision, const Draft& draft) {
  const Patches patches = ReadPatches(vision, 14);
  const int64_t width = vision.Int("hidden_size", kWidth, 1536);
  const int64_t heads = vision.Int("num_heads", kHeads, 12);
  HeadDim(vision, "num_heads", width, heads);
  const int64_t out = vision.Int("out_hidden_size", kWidth, 4096);
  const int64_t row =
      vision.FirstInt("image_size", kPixels, 336) / patches.side;
  // A position for each patch, and the norms before and after the layers.
  ModuleSpec module = BeginEncoder(patches, width, /*bias=*/true,
                                   row * row * width + 2 * width);
  AddLayers(
      vision.Int("depth", kLayers, 24),
      TransformerLayer(
          "block", width, FullAttention(width, heads),
          {.hidden = out, .gated = true},
          {.query_key_value = vision.Flag("attention_bias", false)}, 2 * width),
      &module);
  // A convolution that merges patches, a product with a norm, and a gated
  // feed-forward part.
  const int64_t ffn = vision.Int("intermediate_size", kWidth, 13696);
  module.layers.push_back(
      LinearsLayer("merger",
                   {{width * patches.merge * patches.merge, out},
                    {out, out},
                    {out, 2 * ffn},
                    {ffn, out}},
                   /*bias=*/false, out + 2 * out));
  LastLayer(&module).on_output_tokens = true;
  AddTokenRules(patches, 2, 8, 6144, draft, &module);
  return module;
}

}  // namespace pipeloom::formats
