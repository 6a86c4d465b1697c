// The vision encoders of the Qwen models, and that of GLM-4V, which takes
// images of any size in the same way.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_QWEN_VISION_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_QWEN_VISION_H_

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Return the encoder with its merger and token rules, whose limits are those of
// the draft's processor.
ModuleSpec ReadQwen2Vision(const ConfigNode& vision, const Draft& draft);
ModuleSpec ReadQwen25Vision(const ConfigNode& vision, const Draft& draft);
ModuleSpec ReadQwen3Vision(const ConfigNode& vision, const Draft& draft);
ModuleSpec ReadGlm4Vision(const ConfigNode& vision, const Draft& draft);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_QWEN_VISION_H_
