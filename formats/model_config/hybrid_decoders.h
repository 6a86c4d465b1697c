// Language models whose layers mix tokens in several ways: Nemotron-H (state
// spaces, attention, feed-forward parts or experts, one of them a layer),
// Granite 4.0 (state spaces or attention, with a feed-forward part), Qwen3-Next
// and Qwen3.5 (gated delta nets and gated attention).
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_HYBRID_DECODERS_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_HYBRID_DECODERS_H_

#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Return the backbone that a configuration describes. What is missing is in the
// notes.
ModuleSpec ReadNemotronH(const ConfigNode& config);
ModuleSpec ReadGraniteMoeHybrid(const ConfigNode& config);
ModuleSpec ReadQwen3Next(const ConfigNode& config);
ModuleSpec ReadQwen35Text(const ConfigNode& config);
ModuleSpec ReadQwen35MoeText(const ConfigNode& config);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_HYBRID_DECODERS_H_
