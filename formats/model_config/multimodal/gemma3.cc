// PaliGemma, and Gemma 3 with images.
#include <cmath>
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {

void ReadGemma3(const ConfigNode& config, Draft* draft) {
  const ConfigNode text = config.Child("text_config");
  VisionEncoder encoder = ReadSiglip(config.Child("vision_config"), {});
  const int64_t tokens = config.Int("mm_tokens_per_image", kCount, 256);
  const auto side =
      static_cast<int64_t>(std::sqrt(static_cast<double>(tokens)));
  if (side == 0 || encoder.patches_a_row % side != 0) {
    config.Fail("mm_tokens_per_image",
                "must have a root that divides the patches of a row");
  }
  // One product, without a bias, after a norm.
  const int64_t hidden = text.Int("hidden_size", kWidth, 2304);
  encoder.module.layers.push_back(LinearsLayer(
      "projector", {{encoder.width, hidden}}, /*bias=*/false, encoder.width));
  LastLayer(&encoder.module).on_output_tokens = true;
  TokenRule image;
  image.kind = TokenRuleKind::kFixedSquare;
  image.modality = Modality::kImage;
  image.side = encoder.image_side;
  image.patch = encoder.patch_side;
  image.merge = side > 0 ? encoder.patches_a_row / side : 1;
  encoder.module.token_rules = {image};
  config.notes().Assume("images are not cut (pan and scan is off)");
  const ModuleId id = draft->Add(std::move(encoder.module));
  const ModuleId backbone = AddDecoder(text, "gemma3_text", {id}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", true);
}

void ReadPaliGemma(const ConfigNode& config, Draft* draft) {
  const ConfigNode text = config.Child("text_config");
  VisionEncoder encoder = ReadSiglip(config.Child("vision_config"), {});
  // One product with a bias, to the width of the language model.
  const int64_t hidden = text.Int("hidden_size", kWidth, 2048);
  encoder.module.layers.push_back(
      LinearsLayer("projector", {{encoder.width, hidden}}, /*bias=*/true));
  LastLayer(&encoder.module).on_output_tokens = true;
  TokenRule image;
  image.kind = TokenRuleKind::kFixedSquare;
  image.modality = Modality::kImage;
  image.side = encoder.image_side;
  image.patch = encoder.patch_side;
  encoder.module.token_rules = {image};
  config.notes().Assume(
      "image and prompt attend to each other in both directions in the class; "
      "here attention is causal");
  const ModuleId id = draft->Add(std::move(encoder.module));
  const ModuleId backbone = AddDecoder(text, "", {id}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", true);
}

}  // namespace pipeloom::formats
