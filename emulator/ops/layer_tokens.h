// How many tokens a layer works on.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_TOKENS_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_TOKENS_H_

#include <cstdint>

#include "ir/job/model_spec.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// The layer's tokens: the module's output tokens if it works on those; those of
// its own grid if it works on a coarser one.
int64_t LayerTokens(const LayerSpec& layer, const WorkShape& shape);

// The context of the layer's cross-attention.
int64_t ContextTokens(const LayerSpec& layer, const WorkShape& shape);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_TOKENS_H_
