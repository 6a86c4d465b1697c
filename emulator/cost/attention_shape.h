// A call of fused attention as the kernel models see it.
#ifndef PIPELOOM_EMULATOR_COST_ATTENTION_SHAPE_H_
#define PIPELOOM_EMULATOR_COST_ATTENTION_SHAPE_H_

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/numeric.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

// A call over `batch` sequences of `seq` tokens.
struct AttentionShape {
  double batch = 1;
  double seq = 0;
  double heads = 0;
  double kv_heads = 0;
  double head_dim = 0;
  double value_dim = 0;
  bool causal = false;
  // Ratio of its FLOPs to those of the full or causal triangle: windows,
  // sparsity, keys of other sequences.
  double density = 1;

  // Returns the pairs of query and key of a head in the whole triangle.
  double pairs() const { return seq * seq * (causal ? 0.5 : 1); }
};

// Head dimensions that kernels exist for; others use the next larger one.
inline constexpr double kKernelHeadDims[] = {64, 96, 128, 192, 256, 512};

// Returns the index of the kernel in that list; the list's length for larger
// dimensions.
inline size_t KernelOf(double head_dim) {
  size_t kernel = 0;
  for (const double dim : kKernelHeadDims) {
    if (head_dim <= dim) break;
    ++kernel;
  }
  return kernel;
}

// Returns the head dimension of the kernel; `head_dim` itself if it is larger
// than all of them.
inline double PaddedHeadDim(double head_dim) {
  const size_t kernel = KernelOf(head_dim);
  return kernel < std::size(kKernelHeadDims) ? kKernelHeadDims[kernel]
                                             : head_dim;
}

// Returns the call of row `i` of a table.
inline AttentionShape ShapeOf(const AttentionTable& t, size_t i) {
  AttentionShape shape{.batch = Real(t.batch[i]),
                       .seq = Real(t.seq[i]),
                       .heads = Real(t.heads[i]),
                       .kv_heads = Real(t.kv_heads[i]),
                       .head_dim = Real(t.head_dim[i]),
                       .value_dim = Real(t.head_dim[i]),
                       .causal = t.mask == QueryMask::kCausal};
  if (!t.value_dim.empty()) shape.value_dim = Real(t.value_dim[i]);
  if (!t.window.empty() && t.window[i] > 0) {
    shape.density =
        std::min(1.0, shape.seq * Real(t.window[i]) / shape.pairs());
  }
  return shape;
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_ATTENTION_SHAPE_H_
