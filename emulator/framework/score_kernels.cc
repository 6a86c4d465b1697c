#include "emulator/framework/score_kernels.h"

#include <cmath>
#include <cstdint>

#include "base/numeric.h"

namespace pipeloom::emulator {
namespace {

// A fused softmax reads and writes, backward with one more read, and keeps its
// result. Dropout reads and writes with a mask, and keeps result and mask.
constexpr ScoreKernels kFused{
    .forward_bytes = 4 + 5, .backward_bytes = 6 + 5, .kept_bytes = 2 + 2 + 1};
// Operators on fp32 instead, forward: copy (6), scale (8), mask in place (8),
// softmax (8), copy (6). Backward: copy (6), softmax (12), the mask's copy and
// itself (16), scale (8), copy (6). The result of the softmax is kept in fp32.
constexpr ScoreKernels kOperators{.forward_bytes = 36 + 5,
                                  .backward_bytes = 48 + 5,
                                  .kept_bytes = 4 + 2 + 1,
                                  .more_forward_kernels = 4,
                                  .more_backward_kernels = 5};
constexpr int64_t kMostKeys = 4096;
constexpr int64_t kMultiple = 4;

}  // namespace

ScoreKernels ScoreKernelsOf(const LayerSpec& layer, const WorkShape& shape,
                            const ParallelLayout& parallel,
                            const TrainingSetup& setup) {
  const bool megatron = setup.framework == Framework::kMegatronCore ||
                        setup.framework == Framework::kMegatronBridge;
  if (!megatron || shape.sequences <= 0 || shape.longest <= 0) return kFused;
  const int64_t matrices = std::llround(shape.sequences) *
                           CeilDiv(layer.attention.heads, int64_t{parallel.tp});
  const bool fits = shape.longest <= kMostKeys &&
                    shape.longest % kMultiple == 0 && matrices % kMultiple == 0;
  return fits ? kFused : kOperators;
}

}  // namespace pipeloom::emulator
