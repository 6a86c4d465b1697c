// GLM-4.1V, GLM-4.5V and GLM-4.6V: the encoder of GLM-4V and a language model,
// dense or with experts.
#include <utility>

#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/qwen_vision.h"

namespace pipeloom::formats {
namespace {

void ReadWithText(const ConfigNode& config, absl::string_view text,
                  Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadGlm4Vision(config.Child("vision_config"), *draft));
  const ModuleId backbone =
      AddDecoder(config.Child("text_config"), text, {vision}, draft);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", false);
}

}  // namespace

void ReadGlm4v(const ConfigNode& config, Draft* draft) {
  ReadWithText(config, "glm4v_text", draft);
}

void ReadGlm4vMoe(const ConfigNode& config, Draft* draft) {
  ReadWithText(config, "glm4v_moe_text", draft);
}

void ReadGlm46v(const ConfigNode& config, Draft* draft) {
  // The language model is named by its configuration.
  const bool named = config.Child("text_config").Has("model_type");
  ReadWithText(config, named ? "" : "glm4v_text", draft);
}

}  // namespace pipeloom::formats
