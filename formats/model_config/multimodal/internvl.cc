// InternVL 2.5 to 3.5, in the form of transformers (internvl) and in that of
// the published code (internvl_chat).
#include <vector>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {
namespace {

// The switches that the two forms call by different names.
struct VitOptions {
  bool qkv_bias = false;
  bool query_key_norms = false;
  bool norm_biases = true;
  bool final_norm = false;
  int64_t tiles = 12;
};

// Adds the encoder with its projector into the width of `text`, and the
// language model.
void AddInternVl(const ConfigNode& config, const ConfigNode& vision,
                 const ConfigNode& text, const VitOptions& options,
                 Draft* draft) {
  const int64_t width = vision.Int("hidden_size", kWidth, 1024);
  const int64_t heads = vision.Int("num_attention_heads", kHeads, 16);
  HeadDim(vision, "num_attention_heads", width, heads);
  const int64_t side = vision.FirstInt("image_size", kPixels, 448);
  const int64_t patch = vision.FirstInt("patch_size", kPixels, 14);
  const int64_t row = patch > 0 ? side / patch : 0;
  const int64_t norm = (options.norm_biases ? 2 : 1) * width;
  ModuleSpec module;
  module.name = "vision_encoder";
  module.role = ModuleRole::kEncoder;
  // A class token, and a position for it and every patch.
  module.layers.push_back(
      LinearsLayer("patch_embedding", {{3 * patch * patch, width}},
                   /*bias=*/true, width + (row * row + 1) * width));
  AddLayers(
      vision.Int("num_hidden_layers", kLayers, 24),
      TransformerLayer(
          "block", width, FullAttention(width, heads),
          {.hidden = vision.Int("intermediate_size", kWidth, 4096)},
          {options.qkv_bias, true, true},
          2 * norm + 2 * width + (options.query_key_norms ? 2 * width : 0)),
      &module);
  if (options.final_norm) {
    LastLayer(&module).vector_parameters += 2 * width;
  }
  const double ratio = config.Number("downsample_ratio", 0.01, 1, 0.5);
  const auto merge = static_cast<int64_t>(1 / ratio);
  const int64_t merged = width * merge * merge;
  const int64_t hidden = text.Int("hidden_size", kWidth, 4096);
  module.layers.push_back(LinearsLayer("projector",
                                       {{merged, hidden}, {hidden, hidden}},
                                       /*bias=*/true, 2 * merged));
  LastLayer(&module).on_output_tokens = true;

  TokenRule image;
  image.kind = TokenRuleKind::kTiles;
  image.modality = Modality::kImage;
  image.side = side;
  image.max_tiles = options.tiles;
  image.tokens_per_tile = row * row + 1;
  image.output_tokens_per_tile = (row / merge) * (row / merge);
  image.extra_tokens = 2;
  if (row % merge != 0) {
    config.Fail("downsample_ratio", "must divide the patches of a tile's row");
  }
  TokenRule video = image;  // Each frame is one tile.
  video.modality = Modality::kVideo;
  video.max_tiles = 1;
  video.fps = 2;
  video.max_frames = 64;
  draft->notes.Assume(
      "videos are sampled at 2 frames a second, at most 64, a tile each");
  module.token_rules = {image, video};
  const ModuleId vision_id = draft->Add(std::move(module));
  const std::string type = text.Text("model_type");
  const ModuleId backbone =
      AddDecoder(text, type.empty() ? "qwen2" : "", {vision_id}, draft);
  const bool tied = text.Flag("tie_word_embeddings", false);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", tied);
}

int64_t MaxTiles(const ConfigNode& config, const ConfigNode& processor) {
  if (const auto tiles = processor.Optional("max_patches", {1, 4096})) {
    return *tiles;
  }
  return config.Int("max_dynamic_patch", {1, 4096}, 12);
}

}  // namespace

void ReadInternVl(const ConfigNode& config, Draft* draft) {
  const ConfigNode vision = config.Child("vision_config");
  AddInternVl(config, vision, config.Child("text_config"),
              {.qkv_bias = vision.Flag("attention_bias", false),
               .query_key_norms = vision.Flag("use_qk_norm", false),
               .norm_biases = vision.Text("norm_type") != "rms_norm",
               .final_norm = !vision.Flag("use_mean_pooling", true),
               .tiles = MaxTiles(config, draft->processor)},
              draft);
}

void ReadInternVlChat(const ConfigNode& config, Draft* draft) {
  const ConfigNode vision = config.Child("vision_config");
  AddInternVl(config, vision, config.Child("llm_config"),
              {.qkv_bias = vision.Flag("qkv_bias", true),
               .query_key_norms = vision.Flag("qk_normalization", false),
               .norm_biases = vision.Text("norm_type") != "rms_norm",
               .tiles = MaxTiles(config, draft->processor)},
              draft);
}

}  // namespace pipeloom::formats
