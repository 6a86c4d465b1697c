// Kernels that the host launches for a layer's passes.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_LAYER_LAUNCHES_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_LAYER_LAUNCHES_H_

#include <cstdint>

#include "emulator/framework/pytorch_traffic.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

struct PassLaunches {
  double forward = 0;
  double backward = 0;  // For both gradients.
  double weight_grad =
      0;  // The part of backward that is the weight gradient's.
};

// Returns whether the framework scales and rotates queries and keys by single
// PyTorch operators, not by one fused kernel.
bool ScalesRotaryApart(const LayerSpec& layer, const TrainingSetup& setup);

// Returns the launches of a transformer layer or loss head. `graphs`: which
// kernels CUDA graphs launch. `packed`: whether a microbatch's sequences are
// packed. `weight_grad_products`: number of its products for weights.
PassLaunches LayerLaunches(const LayerSpec& layer, const WorkShape& shape,
                           const ParallelLayout& parallel,
                           const TrainingSetup& setup, CudaGraphs graphs,
                           bool packed, int64_t weight_grad_products);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_LAYER_LAUNCHES_H_
