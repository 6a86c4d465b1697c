#include "emulator/ops/op_graph.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

LayerOps BuildLayerOps(const LayerSpec& layer, const WorkShape& shape,
                       const ParallelLayout& parallel,
                       const GradientNeeds& needs, const OpOptions& options) {
  return LayerBuilder(layer, shape, parallel, needs, options).Build();
}

}  // namespace pipeloom::emulator
