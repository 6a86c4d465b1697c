// Memory of a layer's kernels that are not fused, or work on the whole
// sequence.
#ifndef PIPELOOM_EMULATOR_STAGE_UNFUSED_MEMORY_H_
#define PIPELOOM_EMULATOR_STAGE_UNFUSED_MEMORY_H_

#include "base/units.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// Bytes that a layer keeps on a GPU, in addition to those of layer_memory.h,
// without fused kernels or without sequence parallelism, or if what it gathers
// is kept. `held_for_weight_grad` is the part that a separate weight gradient
// still needs, `scores` that of the attention's core.
struct UnfusedBytes {
  Bytes kept{};
  Bytes scores{};
  Bytes held_for_weight_grad{};
};
UnfusedBytes UnfusedBytesOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup, bool trained);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_UNFUSED_MEMORY_H_
