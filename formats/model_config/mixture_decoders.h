// Language models with experts: Mixtral, Qwen2 and Qwen3 MoE, DeepSeek V2 and
// V3 (and Kimi K2), GPT-OSS, GLM-4.5, Llama 4.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MIXTURE_DECODERS_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MIXTURE_DECODERS_H_

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Return the backbone that a configuration describes. What is missing is in the
// notes.
ModuleSpec ReadMixtral(const ConfigNode& config);
ModuleSpec ReadMiniMaxM2(const ConfigNode& config);
ModuleSpec ReadQwen2Moe(const ConfigNode& config);
ModuleSpec ReadQwen3Moe(const ConfigNode& config);
ModuleSpec ReadDeepSeekV2(const ConfigNode& config);
ModuleSpec ReadDeepSeekV3(const ConfigNode& config);
ModuleSpec ReadGlm4MoeLite(const ConfigNode& config);
ModuleSpec ReadGptOss(const ConfigNode& config);
ModuleSpec ReadGlm4Moe(const ConfigNode& config);
ModuleSpec ReadGlm4MoeText(const ConfigNode& config);
ModuleSpec ReadLlama4Text(const ConfigNode& config);

// Returns gated experts of which each token passes through `per_token`; an
// error of the configuration if there are fewer.
FfnSpec Experts(const ConfigNode& config, int64_t experts, int64_t per_token,
                int64_t width);
// Adds an expert of `width` that every token passes through. The model file has
// only experts of one width: a wider one counts as several.
void AddSharedExpert(const ConfigNode& config, absl::string_view field,
                     int64_t width, FfnSpec* ffn);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MIXTURE_DECODERS_H_
