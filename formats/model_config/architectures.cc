#include "formats/model_config/architectures.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "formats/model_config/decoders.h"

namespace pipeloom::formats {
namespace {

// Replaces the head of a language model where the configuration names a class
// with another one.
void ReadHead(const ConfigNode& config, LayerSpec* head) {
  const std::vector<std::string> names = config.Texts("architectures");
  if (names.empty() || head->kind != LayerKind::kLossHead) return;
  const std::string& name = names[0];
  const bool of_tokens = absl::EndsWith(name, "ForTokenClassification");
  if (of_tokens || absl::EndsWith(name, "ForSequenceClassification")) {
    int64_t labels = config.Child("id2label").NumFields();
    if (const auto number = config.Optional("num_labels", kVocab)) {
      labels = *number;
    }
    if (labels == 0) labels = 2;  // The default of all classes.
    head->vocab = labels;
    head->tied = false;
    if (of_tokens) head->vector_parameters += labels;
    config.notes().Assume(
        absl::StrFormat("the head is %d wide, as that of %s", labels, name));
  } else if (!absl::EndsWith(name, "ForCausalLM") &&
             !absl::EndsWith(name, "LMHeadModel") &&
             !absl::EndsWith(name, "ForConditionalGeneration")) {
    config.notes().Assume(absl::StrFormat(
        "%s has the head of a language model over the vocabulary", name));
  }
}

// A model that is one language model.
void ReadLanguageModel(const ConfigNode& config, Draft* draft) {
  const ModuleId backbone = AddDecoder(config, "", {}, draft);
  ReadHead(config, &draft->LastLayer(backbone));
}

constexpr std::pair<absl::string_view, ArchitectureReader> kArchitectures[] = {
    {"CogVideoXTransformer3DModel", ReadCogVideoX},
    {"FluxTransformer2DModel", ReadFlux},
    {"HunyuanVideoTransformer3DModel", ReadHunyuanVideo},
    {"LTXVideoTransformer3DModel", ReadLtx},
    {"QwenImageTransformer2DModel", ReadQwenImage},
    {"SD3Transformer2DModel", ReadStableDiffusion3},
    {"WanTransformer3DModel", ReadWan},
    {"gemma3", ReadGemma3},
    {"glm46v", ReadGlm46v},
    {"glm4v", ReadGlm4v},
    {"glm4v_moe", ReadGlm4vMoe},
    {"idefics3", ReadSmolVlm},
    {"internvl", ReadInternVl},
    {"internvl_chat", ReadInternVlChat},
    {"kimi_vl", ReadKimiVl},
    {"llama4", ReadLlama4},
    {"llava", ReadLlava},
    {"llava_onevision", ReadLlavaOneVision},
    {"mistral3", ReadMistral3},
    {"paligemma", ReadPaliGemma},
    {"phi4_multimodal", ReadPhi4Multimodal},
    {"phi4mm", ReadPhi4Checkpoint},
    {"qwen2_5_omni", ReadQwen25Omni},
    {"qwen2_5_omni_thinker", ReadQwen25Omni},
    {"qwen2_5_vl", ReadQwen25Vl},
    {"qwen2_audio", ReadQwen2Audio},
    {"qwen2_vl", ReadQwen2Vl},
    {"qwen3_5", ReadQwen35Vl},
    {"qwen3_5_moe", ReadQwen35VlMoe},
    {"qwen3_omni_moe", ReadQwen3Omni},
    {"qwen3_omni_moe_thinker", ReadQwen3Omni},
    {"qwen3_vl", ReadQwen3Vl},
    {"qwen3_vl_moe", ReadQwen3VlMoe},
    {"smolvlm", ReadSmolVlm},
    {"whisper", ReadWhisper},
};

}  // namespace

ArchitectureReader FindArchitecture(absl::string_view type) {
  for (const auto& [name, reader] : kArchitectures) {
    if (name == type) return reader;
  }
  return FindDecoder(type) != nullptr ? ReadLanguageModel : nullptr;
}

std::vector<std::string> ArchitectureTypes() {
  std::vector<std::string> names = DecoderTypes();
  for (const auto& entry : kArchitectures) names.emplace_back(entry.first);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace pipeloom::formats
