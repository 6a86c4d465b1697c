// Operators that keep the same tensors for their backward as a GPU's fused
// kernels (emulator/stage/layer_memory.h has the list), not those that their
// parts would keep:
//
//   operator       keeps
//   norm           its input
//   rotation       nothing
//   attention      queries, keys, values, its output, the log-sum-exp (fp32)
//   SiLU product   its two inputs
//   cross-entropy  the gradient of the logits, in the logits' place
//
// A fused kernel holds its temporary values on chip. Code that counts bytes
// asks KernelScope and leaves them out.
#ifndef PIPELOOM_RUNTIME_TORCH_FUSED_OPS_H_
#define PIPELOOM_RUNTIME_TORCH_FUSED_OPS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace pipeloom::runtime {

// The scope in which one of the operators runs on this thread.
class KernelScope {
 public:
  KernelScope() { ++depth_; }
  ~KernelScope() { --depth_; }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;
  // Returns whether this thread is inside a scope.
  static bool inside() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// Returns the "wide" type, in which sums are made: fp64 for fp64, else fp32.
at::ScalarType WideOf(at::ScalarType type);

// Computes the RMS norm over the last dimension; `weight` is in the wide type.
at::Tensor FusedNorm(const at::Tensor& x, const at::Tensor& weight);

// Applies rotary positions to x [rows, heads, dim]. The rows are sequences of
// these lengths, one after another, and positions count from the start of each.
at::Tensor FusedRotate(const at::Tensor& x,
                       const std::vector<int64_t>& lengths);

// A block of query rows and the block of key rows that they see, as first row
// and number of rows. No query row is in two blocks.
struct AttentionBlock {
  int64_t query = 0;
  int64_t queries = 0;
  int64_t key = 0;
  int64_t keys = 0;  // If 0, the output is 0.
};
// Computes the attention of q [rows, heads, d], k [other rows, kv heads, d] and
// v [other rows, kv heads, e]. Returns [rows, heads * e].
at::Tensor FusedAttention(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v,
                          const std::vector<AttentionBlock>& blocks,
                          bool causal);

// Returns silu(gate) * up.
at::Tensor FusedSiluProduct(const at::Tensor& gate, const at::Tensor& up);

// Returns the sum over rows, in the wide type. Overwrites the logits.
at::Tensor FusedCrossEntropy(const at::Tensor& logits,
                             const at::Tensor& labels);

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_FUSED_OPS_H_
