#include "formats/model_config/decoders.h"

#include "absl/strings/str_format.h"
#include "formats/model_config/decoder_shape.h"
#include "formats/model_config/dense_decoders.h"
#include "formats/model_config/hybrid_decoders.h"
#include "formats/model_config/mixture_decoders.h"

namespace pipeloom::formats {
namespace {

// A class of language models. Its `layer_types` are full_attention and `other`;
// "": it names its layers by another field.
struct Decoder {
  absl::string_view type;
  DecoderReader read;
  absl::string_view other = kSlidingAttention;
};

constexpr absl::string_view kLinearAttention = "linear_attention";

constexpr Decoder kDecoders[] = {
    {"deepseek_v2", ReadDeepSeekV2},
    {"deepseek_v3", ReadDeepSeekV3},
    {"ernie4_5", ReadErnie45},
    {"gemma", ReadGemma},
    {"gemma2", ReadGemma2},
    {"gemma3_text", ReadGemma3Text},
    {"glm4", ReadGlm4},
    {"glm4_moe", ReadGlm4Moe},
    {"glm4_moe_lite", ReadGlm4MoeLite},
    {"glm4v_moe_text", ReadGlm4MoeText},
    {"glm4v_text", ReadGlm4vText},
    {"gpt_oss", ReadGptOss},
    {"granite", ReadLlama},
    {"granitemoehybrid", ReadGraniteMoeHybrid, ""},
    {"hunyuan_v1_dense", ReadHunYuanDense},
    {"internlm2", ReadInternLm2},
    {"kimi_k2", ReadDeepSeekV3},
    {"llama", ReadLlama},
    {"llama4_text", ReadLlama4Text, "chunked_attention"},
    {"minimax_m2", ReadMiniMaxM2},
    {"ministral", ReadMistral},
    {"ministral3", ReadMinistral3},
    {"mistral", ReadMistral},
    {"mixtral", ReadMixtral},
    {"nemotron_h", ReadNemotronH, ""},
    {"olmo2", ReadOlmo2},
    {"olmo3", ReadOlmo3},
    {"phi3", ReadPhi3},
    {"qwen2", ReadQwen2},
    {"qwen2_5_omni_text", ReadQwen2VlText},
    {"qwen2_5_vl_text", ReadQwen2VlText},
    {"qwen2_moe", ReadQwen2Moe},
    {"qwen2_vl_text", ReadQwen2VlText},
    {"qwen3", ReadQwen3},
    {"qwen3_5_moe_text", ReadQwen35MoeText, kLinearAttention},
    {"qwen3_5_text", ReadQwen35Text, kLinearAttention},
    {"qwen3_moe", ReadQwen3Moe},
    {"qwen3_next", ReadQwen3Next, kLinearAttention},
    {"qwen3_omni_moe_text", ReadQwen3Moe},
    {"qwen3_vl_moe_text", ReadQwen3Moe},
    {"qwen3_vl_text", ReadQwen3},
    {"seed_oss", ReadSeedOss},
    {"smollm3", ReadSmolLm3},
};

const Decoder* Find(absl::string_view model_type) {
  for (const Decoder& decoder : kDecoders) {
    if (decoder.type == model_type) return &decoder;
  }
  return nullptr;
}

}  // namespace

DecoderReader FindDecoder(absl::string_view model_type) {
  const Decoder* decoder = Find(model_type);
  return decoder == nullptr ? nullptr : decoder->read;
}

std::vector<std::string> DecoderTypes() {
  std::vector<std::string> names;
  for (const Decoder& entry : kDecoders) names.emplace_back(entry.type);
  return names;
}

ModuleId AddDecoder(const ConfigNode& text, absl::string_view type,
                    const std::vector<ModuleId>& feeding, Draft* draft) {
  const std::string named = text.Text("model_type");
  const Decoder* decoder = Find(type);
  if (decoder == nullptr) decoder = Find(named);
  if (decoder == nullptr) {
    text.notes().Miss(absl::StrFormat(
        "the layers of language model \"%s\": they are written as those of "
        "Llama; compare biases, norms and experts",
        named.empty() ? std::string(type) : named));
  }
  const ModuleId backbone =
      draft->Add(decoder == nullptr ? ReadLlama(text) : decoder->read(text));
  if (decoder != nullptr && !decoder->other.empty()) {
    CheckLayerTypes(text, decoder->other);
  }
  for (const ModuleId module : feeding) draft->Connect(module, backbone);
  return backbone;
}

}  // namespace pipeloom::formats
