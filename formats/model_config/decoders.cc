#include "formats/model_config/decoders.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "formats/model_config/dense_decoders.h"
#include "formats/model_config/hybrid_decoders.h"
#include "formats/model_config/mixture_decoders.h"

namespace pipeloom::formats {
namespace {

constexpr std::pair<absl::string_view, DecoderReader> kDecoders[] = {
    {"deepseek_v2", ReadDeepSeekV2},
    {"deepseek_v3", ReadDeepSeekV3},
    {"gemma3_text", ReadGemma3Text},
    {"glm4v_moe_text", ReadGlm4MoeText},
    {"gpt_oss", ReadGptOss},
    {"internlm2", ReadInternLm2},
    {"llama", ReadLlama},
    {"llama4_text", ReadLlama4Text},
    {"ministral", ReadMistral},
    {"mistral", ReadMistral},
    {"mixtral", ReadMixtral},
    {"nemotron_h", ReadNemotronH},
    {"phi3", ReadPhi3},
    {"qwen2", ReadQwen2},
    {"qwen2_5_omni_text", ReadQwen2},
    {"qwen2_5_vl_text", ReadQwen2},
    {"qwen2_moe", ReadQwen2Moe},
    {"qwen2_vl_text", ReadQwen2},
    {"qwen3", ReadQwen3},
    {"qwen3_5_moe_text", ReadQwen35MoeText},
    {"qwen3_5_text", ReadQwen35Text},
    {"qwen3_moe", ReadQwen3Moe},
    {"qwen3_next", ReadQwen3Next},
    {"qwen3_omni_moe_text", ReadQwen3Moe},
    {"qwen3_vl_moe_text", ReadQwen3Moe},
    {"qwen3_vl_text", ReadQwen3},
};

}  // namespace

DecoderReader FindDecoder(absl::string_view model_type) {
  for (const auto& [name, reader] : kDecoders) {
    if (name == model_type) return reader;
  }
  return nullptr;
}

std::vector<std::string> DecoderTypes() {
  std::vector<std::string> names;
  for (const auto& entry : kDecoders) names.emplace_back(entry.first);
  return names;
}

ModuleId AddDecoder(const ConfigNode& text, absl::string_view type,
                    const std::vector<ModuleId>& feeding, Draft* draft) {
  const std::string named = text.Text("model_type");
  DecoderReader read = FindDecoder(type);
  if (read == nullptr) read = FindDecoder(named);
  if (read == nullptr) {
    text.notes().Miss(absl::StrFormat(
        "the layers of language model \"%s\": they are written as those of "
        "Llama; compare biases, norms and experts",
        named.empty() ? std::string(type) : named));
    read = ReadLlama;
  }
  const ModuleId backbone = draft->Add(read(text));
  for (const ModuleId module : feeding) draft->Connect(module, backbone);
  return backbone;
}

}  // namespace pipeloom::formats
