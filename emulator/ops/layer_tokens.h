// Numbers of tokens that a layer works on.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_TOKENS_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_TOKENS_H_

#include <cstdint>

#include "ir/job/model_spec.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// Returns the layer's tokens: the module's output tokens if it works on those,
// those of its own grid if it works on a coarser one, else the module's tokens.
int64_t LayerTokens(const LayerSpec& layer, const WorkShape& shape);

// Returns the context tokens of the layer's cross-attention.
int64_t ContextTokens(const LayerSpec& layer, const WorkShape& shape);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_TOKENS_H_
