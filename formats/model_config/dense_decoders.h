// Language models without experts: Llama, Mistral, Qwen2, Qwen3, Gemma, OLMo
// and those that differ from them by biases and norms only.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_DENSE_DECODERS_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_DENSE_DECODERS_H_

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Return the backbone that a configuration describes. What is missing is in the
// notes.
ModuleSpec ReadLlama(const ConfigNode& config);
ModuleSpec ReadMistral(const ConfigNode& config);
ModuleSpec ReadMinistral3(const ConfigNode& config);
ModuleSpec ReadSeedOss(const ConfigNode& config);
ModuleSpec ReadSmolLm3(const ConfigNode& config);
ModuleSpec ReadErnie45(const ConfigNode& config);
ModuleSpec ReadHunYuanDense(const ConfigNode& config);
ModuleSpec ReadGlm4(const ConfigNode& config);
ModuleSpec ReadGlm4vText(const ConfigNode& config);
ModuleSpec ReadQwen2(const ConfigNode& config);
// The text of Qwen2-VL and later, whose classes have defaults of other sizes.
ModuleSpec ReadQwen2VlText(const ConfigNode& config);
ModuleSpec ReadQwen3(const ConfigNode& config);
ModuleSpec ReadGemma(const ConfigNode& config);
ModuleSpec ReadGemma2(const ConfigNode& config);
ModuleSpec ReadGemma3Text(const ConfigNode& config);
ModuleSpec ReadOlmo2(const ConfigNode& config);
ModuleSpec ReadOlmo3(const ConfigNode& config);
ModuleSpec ReadPhi3(const ConfigNode& config);
ModuleSpec ReadPhi4MultimodalText(const ConfigNode& config);
ModuleSpec ReadInternLm2(const ConfigNode& config);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_DENSE_DECODERS_H_
