// SmolVLM and Idefics3.
#include <algorithm>
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/vision_transformer.h"

namespace pipeloom::formats {

void ReadSmolVlm(const ConfigNode& config, Draft* draft) {
  const ConfigNode text = config.Child("text_config");
  VisionEncoder encoder =
      ReadSiglip(config.Child("vision_config"), {.width = 1152,
                                                 .ffn = 3072,
                                                 .layers = 12,
                                                 .heads = 16,
                                                 .image_side = 224,
                                                 .patch_side = 32,
                                                 .pooling_head = false});
  const int64_t factor = config.Int("scale_factor", {1, 64}, 2);
  const int64_t hidden = text.Int("hidden_size", kWidth, 4096);
  encoder.module.layers.push_back(
      LinearsLayer("projector", {{encoder.width * factor * factor, hidden}},
                   /*bias=*/false));
  LastLayer(&encoder.module).on_output_tokens = true;
  TokenRule image;
  image.kind = TokenRuleKind::kTiles;
  image.modality = Modality::kImage;
  image.side = encoder.image_side;
  image.max_tiles = 16;
  image.tokens_per_tile = encoder.patches();
  image.output_tokens_per_tile =
      std::max<int64_t>(encoder.patches() / (factor * factor), 1);
  encoder.module.token_rules = {image};
  draft->notes.Assume(
      "images are cut into at most 16 tiles by the nearest aspect ratio, where "
      "the processor scales the longer side; markers between tiles are not "
      "counted");
  const ModuleId id = draft->Add(std::move(encoder.module));
  const ModuleId backbone =
      AddDecoder(text, text.Has("model_type") ? "" : "llama", {id}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", false) ||
                                    text.Flag("tie_word_embeddings", false);
}

}  // namespace pipeloom::formats
