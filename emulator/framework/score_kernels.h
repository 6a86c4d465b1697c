// Kernels on the scores of attention that is not fused: softmax and dropout.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_SCORE_KERNELS_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_SCORE_KERNELS_H_

#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// Bytes per score of 16 bits that softmax and dropout move, or keep for the
// backward, and the kernels that they launch in addition to those of a fused
// softmax.
struct ScoreKernels {
  double forward_bytes = 0;
  double backward_bytes = 0;
  double kept_bytes = 0;
  double more_forward_kernels = 0;
  double more_backward_kernels = 0;
};

// Returns the kernels of a layer's self-attention. Megatron has one that
// scales, masks and normalizes 16-bit scores, but only for up to 4,096 keys and
// where sequences x heads of a GPU and keys are multiples of 4
// (megatron/core/fusions/fused_softmax.py, is_kernel_available; the same since
// 2020, up to 2,048 keys at first); otherwise each is an operator of PyTorch in
// fp32. A shape that does not say its number of sequences is taken to fit, and
// so is every shape of other frameworks. Pure; O(1).
ScoreKernels ScoreKernelsOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_SCORE_KERNELS_H_
