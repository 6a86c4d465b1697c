#include "formats/model_config/architectures.h"

#include <algorithm>
#include <utility>

#include "formats/model_config/decoders.h"

namespace pipeloom::formats {
namespace {

// A model that is one language model.
void ReadLanguageModel(const ConfigNode& config, Draft* draft) {
  AddDecoder(config, "", {}, draft);
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
