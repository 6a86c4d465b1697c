// Mistral Small 3.1 and later: a Pixtral encoder and a Mistral language model.
#include <algorithm>
#include <utility>
#include <vector>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {

void ReadMistral3(const ConfigNode& config, Draft* draft) {
  const ConfigNode text = config.Child("text_config");
  VisionEncoder encoder = ReadPixtral(config.Child("vision_config"));
  const int64_t width = encoder.width;
  const int64_t hidden = text.Int("hidden_size", kWidth, 5120);
  const int64_t merge = config.Int("spatial_merge_size", {1, 64}, 2);
  const bool bias = config.Flag("multimodal_projector_bias", false);
  encoder.module.layers.push_back(LinearsLayer(
      "projector",
      {{width * merge * merge, width}, {width, hidden}, {hidden, hidden}},
      /*bias=*/false, width + (bias ? 2 * hidden : 0)));
  LastLayer(&encoder.module).on_output_tokens = true;
  TokenRule image;
  image.kind = TokenRuleKind::kDynamicResolution;
  image.modality = Modality::kImage;
  image.patch = encoder.patch_side;
  image.merge = merge;
  image.min_tokens = 1;
  const int64_t row =
      std::max<int64_t>(encoder.image_side / (encoder.patch_side * merge), 1);
  image.max_tokens = row * row;
  encoder.module.token_rules = {image};
  draft->notes.Assume(
      "images are scaled by their area, where the processor limits the longer "
      "side; breaks of rows are not counted");
  const ModuleId id = draft->Add(std::move(encoder.module));
  const ModuleId backbone =
      AddDecoder(text, text.Has("model_type") ? "" : "mistral", {id}, draft);
  draft->LastLayer(backbone).tied = config.Flag(
      "tie_word_embeddings", text.Flag("tie_word_embeddings", false));
}

}  // namespace pipeloom::formats
