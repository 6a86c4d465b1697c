// LLaVA-OneVision.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {

namespace {

// Returns the most tiles of a grid per side: image_grid_pinpoints has all grids
// up to it.
int64_t TilesOfSide(const ConfigNode& config, int64_t tile) {
  constexpr int64_t kDefault = 6;
  const auto grids = config.IntLists("image_grid_pinpoints", kPixels);
  if (!config.Has("image_grid_pinpoints")) {
    config.notes().Assume("image_grid_pinpoints = all grids up to 6 x 6 tiles");
    return kDefault;
  }
  std::set<std::vector<int64_t>> known;
  int64_t most = 1;
  for (const std::vector<int64_t>& grid : grids) {
    for (const int64_t side : grid) most = std::max(most, side / tile);
    known.insert(grid);
  }
  bool all = most <= 64 && static_cast<int64_t>(known.size()) == most * most;
  for (int64_t rows = 1; all && rows <= most; ++rows) {
    for (int64_t columns = 1; all && columns <= most; ++columns) {
      all = known.count({rows * tile, columns * tile}) > 0;
    }
  }
  if (all) return most;
  config.notes().Assume(
      "image_grid_pinpoints, which lists some grids only, is taken for all "
      "grids up to 6 x 6 tiles");
  return kDefault;
}

// Returns the tiles to which a grid is scaled: 9 of "anyres_max_9".
int64_t MaxGridTiles(const ConfigNode& config) {
  const std::string text = config.Text("vision_aspect_ratio");
  absl::string_view number = text;
  int64_t tiles = 0;
  if (absl::ConsumePrefix(&number, "anyres_max_") &&
      absl::SimpleAtoi(number, &tiles) && tiles >= 1 && tiles <= 4096) {
    return tiles;
  }
  if (!text.empty()) {
    config.Fail("vision_aspect_ratio",
                "must be anyres_max_N with N in [1, 4096]");
  }
  config.notes().Assume("vision_aspect_ratio = anyres_max_9");
  return 9;
}

}  // namespace

void ReadLlavaOneVision(const ConfigNode& config, Draft* draft) {
  const ConfigNode vision = config.Child("vision_config");
  const ConfigNode text = config.Child("text_config");
  VisionEncoder encoder = ReadSiglip(vision, {.width = 1152,
                                              .ffn = 4304,
                                              .layers = 26,
                                              .heads = 16,
                                              .image_side = 384,
                                              .patch_side = 14,
                                              .pooling_head = false});
  const int64_t hidden = text.Int("hidden_size", kWidth, 4096);
  // The token at the end of each row is counted with the projector.
  encoder.module.layers.push_back(
      LinearsLayer("projector", {{encoder.width, hidden}, {hidden, hidden}},
                   config.Flag("multimodal_projector_bias", true), hidden));
  LastLayer(&encoder.module).on_output_tokens = true;
  TokenRule image;
  image.kind = TokenRuleKind::kAnyResolution;
  image.modality = Modality::kImage;
  image.side = encoder.image_side;
  image.patch = encoder.patch_side;
  image.max_tiles = TilesOfSide(config, std::max<int64_t>(image.side, 1));
  image.max_tokens = MaxGridTiles(config) * encoder.patches();
  // A frame is a tile, pooled by 2 per side.
  const int64_t pooled = (encoder.patches_a_row + 1) / 2;
  TokenRule video;
  video.kind = TokenRuleKind::kTiles;
  video.modality = Modality::kVideo;
  video.side = encoder.image_side;
  video.max_tiles = 1;
  video.tokens_per_tile = encoder.patches();
  video.output_tokens_per_tile = pooled * pooled;
  video.fps = 1;
  video.max_frames = 32;
  draft->notes.Assume(
      "videos are sampled at 1 frame a second, at most 32; the token at their "
      "end is not counted");
  encoder.module.token_rules = {image, video};
  const ModuleId id = draft->Add(std::move(encoder.module));
  const ModuleId backbone = AddDecoder(
      text, text.Text("model_type").empty() ? "qwen2" : "", {id}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", false) ||
                                    text.Flag("tie_word_embeddings", false);
}

}  // namespace pipeloom::formats
