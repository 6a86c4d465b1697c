#include "emulator/ops/layer_tokens.h"

#include "base/numeric.h"

namespace pipeloom::emulator {

int64_t LayerTokens(const LayerSpec& layer, const WorkShape& shape) {
  const int64_t tokens =
      layer.on_output_tokens ? shape.output_tokens : shape.tokens;
  if (layer.downsample == 1 || tokens == 0) return tokens;
  return std::max<int64_t>(
      1, static_cast<int64_t>(
             std::llround(Real(tokens) / layer.downsample / layer.downsample)));
}

int64_t ContextTokens(const LayerSpec& layer, const WorkShape& shape) {
  const int64_t fixed = layer.cross_attention.context_tokens;
  return fixed > 0 ? fixed * shape.instances : shape.context_tokens;
}

}  // namespace pipeloom::emulator
