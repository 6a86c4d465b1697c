// Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5 with their mixtures.
#include "formats/model_config/architectures.h"
#include "formats/model_config/decoders.h"
#include "formats/model_config/multimodal/qwen_vision.h"

namespace pipeloom::formats {
namespace {

// Adds the language model. Older configurations hold its fields at the top.
// Returns its module and node.
ConfigNode AddQwenText(const ConfigNode& config, absl::string_view type,
                       ModuleId vision, Draft* draft, ModuleId* backbone) {
  const ConfigNode text =
      config.Has("text_config") ? config.Child("text_config") : config;
  *backbone = AddDecoder(text, type, {vision}, draft);
  return text;
}

// Adds the language model of Qwen2-VL, whose embedding is shared if either
// level says so.
void AddQwen2Text(const ConfigNode& config, absl::string_view type,
                  ModuleId vision, Draft* draft) {
  ModuleId backbone{};
  const ConfigNode text = AddQwenText(config, type, vision, draft, &backbone);
  draft->LastLayer(backbone).tied = config.Flag("tie_word_embeddings", false) ||
                                    text.Flag("tie_word_embeddings", false);
}

// Adds the language model of Qwen3-VL, where the top level decides.
void AddQwen3Text(const ConfigNode& config, absl::string_view type,
                  ModuleId vision, Draft* draft) {
  ModuleId backbone{};
  const ConfigNode text = AddQwenText(config, type, vision, draft, &backbone);
  draft->LastLayer(backbone).tied = config.Flag(
      "tie_word_embeddings", text.Flag("tie_word_embeddings", false));
}

}  // namespace

void ReadQwen2Vl(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadQwen2Vision(config.Child("vision_config"), *draft));
  AddQwen2Text(config, "qwen2_vl_text", vision, draft);
}

void ReadQwen25Vl(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadQwen25Vision(config.Child("vision_config"), *draft));
  AddQwen2Text(config, "qwen2_5_vl_text", vision, draft);
}

void ReadQwen3Vl(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadQwen3Vision(config.Child("vision_config"), *draft));
  AddQwen3Text(config, "qwen3_vl_text", vision, draft);
}

void ReadQwen3VlMoe(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadQwen3Vision(config.Child("vision_config"), *draft));
  AddQwen3Text(config, "qwen3_vl_moe_text", vision, draft);
}

void ReadQwen35Vl(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadQwen3Vision(config.Child("vision_config"), *draft, {}));
  AddQwen3Text(config, "qwen3_5_text", vision, draft);
}

void ReadQwen35VlMoe(const ConfigNode& config, Draft* draft) {
  const ModuleId vision =
      draft->Add(ReadQwen3Vision(config.Child("vision_config"), *draft, {}));
  AddQwen3Text(config, "qwen3_5_moe_text", vision, draft);
}

}  // namespace pipeloom::formats
