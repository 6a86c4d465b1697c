// GLM-4.5V: the encoder of GLM-4V and a language model with experts.
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/qwen_vision.h"

namespace pipeloom::formats {

void ReadGlm4vMoe(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadGlm4Vision(config.Child("vision_config"), *draft));
  const ModuleId backbone = AddDecoder(config.Child("text_config"),
                                       "glm4v_moe_text", {vision}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", false);
}

}  // namespace pipeloom::formats
