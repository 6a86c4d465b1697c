#include "emulator/op_graph.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

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

LayerOps BuildLayerOps(const LayerSpec& layer, const WorkShape& shape,
                       const ParallelLayout& parallel,
                       const GradientNeeds& needs, const OpOptions& options) {
  return LayerBuilder(layer, shape, parallel, needs, options).Build();
}

}  // namespace pipeloom::emulator
