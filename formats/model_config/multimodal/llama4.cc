// Llama 4 with images.
#include <algorithm>
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

void ReadLlama4(const ConfigNode& config, Draft* draft) {
  const ConfigNode vision = config.Child("vision_config");
  const ConfigNode text = config.Child("text_config");
  const int64_t width = vision.Int("hidden_size", kWidth, 768);
  const int64_t heads = vision.Int("num_attention_heads", kHeads, 16);
  HeadDim(vision, "num_attention_heads", width, heads);
  const int64_t side = vision.FirstInt("image_size", kPixels, 448);
  const int64_t patch = vision.FirstInt("patch_size", kPixels, 14);
  const int64_t row = side / std::max<int64_t>(patch, 1);
  const int64_t ffn = vision.Int("intermediate_size", kWidth, 5632);
  ModuleSpec module;
  module.name = "vision_encoder";
  module.role = ModuleRole::kEncoder;
  // A class token, a position for it and every patch, a norm before the layers.
  module.layers.push_back(LinearsLayer(
      "patch_embedding",
      {{vision.Int("num_channels", {1, 64}, 3) * patch * patch, width}},
      /*bias=*/false, width + (row * row + 1) * width + 2 * width));
  AddLayers(vision.Int("num_hidden_layers", kLayers, 34),
            TransformerLayer("block", width, FullAttention(width, heads),
                             {.hidden = ffn}, {true, true, true}, 4 * width),
            &module);
  LastLayer(&module).vector_parameters += 2 * width;  // The norm after them.
  const int64_t shuffled = vision.Int("projector_input_dim", kWidth, 4096);
  const int64_t projected = vision.Int("projector_output_dim", kWidth, 4096);
  module.layers.push_back(
      LinearsLayer("projector",
                   {{ffn, shuffled},
                    {projected, projected},
                    {vision.Int("vision_output_dim", kWidth, 7680),
                     text.Int("hidden_size", kWidth, 5120)}},
                   /*bias=*/false));
  LastLayer(&module).on_output_tokens = true;
  const double ratio = vision.Number("pixel_shuffle_ratio", 0.01, 1, 0.5);
  TokenRule image;
  image.kind = TokenRuleKind::kTiles;
  image.modality = Modality::kImage;
  image.side = side;
  image.max_tiles = draft->processor.Int("max_patches", {1, 4096}, 16);
  image.tokens_per_tile = row * row + 1;
  image.output_tokens_per_tile =
      static_cast<int64_t>(static_cast<double>(row * row) * ratio * ratio);
  module.token_rules = {image};
  draft->notes.Assume(
      "tiles are chosen by the nearest aspect ratio; markers between them are "
      "not counted");
  const ModuleId id = draft->Add(std::move(module));
  const ModuleId backbone = AddDecoder(text, "llama4_text", {id}, draft);
  // Whatever the configuration says, the class shares no weights.
  draft->LastLayer(backbone).tied = false;
}

}  // namespace pipeloom::formats
