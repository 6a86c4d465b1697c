// The table of language models by the name that configurations call them.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_DECODERS_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_DECODERS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Returns a function that reads the language models of a `model_type`, or null.
using DecoderReader = ModuleSpec (*)(const ConfigNode& config);
DecoderReader FindDecoder(absl::string_view model_type);
std::vector<std::string> DecoderTypes();

// Adds the language model that `text` describes and connects the modules
// `feeding` to it. One of an unknown type is read as a Llama, and the notes say
// that this is missing. `type` is the type if `text` does not name one.
ModuleId AddDecoder(const ConfigNode& text, absl::string_view type,
                    const std::vector<ModuleId>& feeding, Draft* draft);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_DECODERS_H_
