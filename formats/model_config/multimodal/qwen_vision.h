// The vision encoders of the Qwen models, and that of GLM-4V, which takes
// images of any size in the same way.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_QWEN_VISION_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_QWEN_VISION_H_

#include <cstdint>
#include <vector>

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Return the encoder with its merger and token rules, whose limits are those of
// the draft's processor.
ModuleSpec ReadQwen2Vision(const ConfigNode& vision, const Draft& draft);
ModuleSpec ReadQwen25Vision(const ConfigNode& vision, const Draft& draft);
// `default_taps`: blocks whose tokens reach the language model too, if the
// configuration does not say.
ModuleSpec ReadQwen3Vision(const ConfigNode& vision, const Draft& draft,
                           std::vector<int64_t> default_taps = {8, 16, 24});
ModuleSpec ReadGlm4Vision(const ConfigNode& vision, const Draft& draft);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MULTIMODAL_QWEN_VISION_H_
