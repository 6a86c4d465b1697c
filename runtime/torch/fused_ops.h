// Operators that keep for their backward what a GPU's fused kernels keep
// (emulator/stage/layer_memory.h has the list), not what their parts would:
//
//   operator       keeps
//   norm           its input
//   rotation       nothing
//   attention      queries, keys, values, its output, the log-sum-exp (fp32)
//   SiLU product   its two inputs
//   cross-entropy  the gradient of the logits, in the logits' place
//
// What they need for a moment while they run, a kernel holds on chip:
// KernelScope tells those who count bytes.
#ifndef PIPELOOM_RUNTIME_TORCH_FUSED_OPS_H_
#define PIPELOOM_RUNTIME_TORCH_FUSED_OPS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace pipeloom::runtime {

// While one of the operators runs on this thread.
class KernelScope {
 public:
  KernelScope() { ++depth_; }
  ~KernelScope() { --depth_; }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;
  static bool inside() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// Where sums are made: fp32, or fp64 if all is.
at::ScalarType WideOf(at::ScalarType type);

// RMS norm over the last dimension; `weight` is in the wide type.
at::Tensor FusedNorm(const at::Tensor& x, const at::Tensor& weight);

// Rotary positions for x [rows, heads, dim]; the rows are sequences of these
// lengths, one after another, and positions count from the start of each.
at::Tensor FusedRotate(const at::Tensor& x,
                       const std::vector<int64_t>& lengths);

// Query rows that see key rows; no row is in two blocks.
struct AttentionBlock {
  int64_t query = 0;
  int64_t queries = 0;
  int64_t key = 0;
  int64_t keys = 0;  // 0: the output is 0.
};
// q [rows, heads, d], k [other rows, kv heads, d] and v [other rows, kv heads,
// e] to [rows, heads * e].
at::Tensor FusedAttention(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v,
                          const std::vector<AttentionBlock>& blocks,
                          bool causal);

// silu(gate) * up.
at::Tensor FusedSiluProduct(const at::Tensor& gate, const at::Tensor& up);

// The sum over rows, in the wide type. Overwrites the logits.
at::Tensor FusedCrossEntropy(const at::Tensor& logits,
                             const at::Tensor& labels);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_FUSED_OPS_H_
