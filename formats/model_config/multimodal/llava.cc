// LLaVA 1.5: an encoder of CLIP or SigLIP, two products, and a language model.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {

void ReadLlava(const ConfigNode& config, Draft* draft) {
  const ConfigNode vision = config.Child("vision_config");
  const ConfigNode text = config.Child("text_config");
  const std::string type = vision.Text("model_type");
  const bool siglip = type == "siglip_vision_model";
  if (!siglip && !type.empty() && type != "clip_vision_model") {
    draft->notes.Miss(absl::StrFormat(
        "the layers of vision encoder \"%s\": they are written as those of "
        "CLIP; known are clip_vision_model, siglip_vision_model",
        type));
  }
  // LLaVA's own encoder, where the configuration names none.
  const ClipDefaults clip =
      type.empty() ? ClipDefaults{1024, 4096, 24, 16, 336, 14} : ClipDefaults{};
  VisionEncoder encoder =
      siglip ? ReadSiglip(vision, {}) : ReadClip(vision, clip);
  const int64_t features = config.Items("vision_feature_layer");
  const int64_t hidden = text.Int("hidden_size", kWidth, 4096);
  encoder.module.layers.push_back(LinearsLayer(
      "projector", {{encoder.width * features, hidden}, {hidden, hidden}},
      config.Flag("multimodal_projector_bias", true)));
  LastLayer(&encoder.module).on_output_tokens = true;
  draft->notes.Assume(
      "all layers of the vision encoder run, also those after the layer that "
      "the language model sees");
  // An image is scaled and cut to one square; "full" keeps the class token.
  const int64_t class_tokens = siglip ? 0 : 1;
  const bool full = config.Text("vision_feature_select_strategy") == "full";
  TokenRule image;
  image.kind = TokenRuleKind::kTiles;
  image.modality = Modality::kImage;
  image.side = encoder.image_side;
  image.max_tiles = 1;
  image.tokens_per_tile = encoder.patches() + class_tokens;
  image.output_tokens_per_tile =
      full ? image.tokens_per_tile
           : std::max<int64_t>(image.tokens_per_tile - 1, 1);
  encoder.module.token_rules = {image};
  const ModuleId id = draft->Add(std::move(encoder.module));
  const ModuleId backbone =
      AddDecoder(text, text.Has("model_type") ? "" : "llama", {id}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", false) ||
                                    text.Flag("tie_word_embeddings", false);
}

}  // namespace pipeloom::formats
