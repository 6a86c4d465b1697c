// Operators, and the lists of them that a layer runs in each pass, on one GPU.
// emulator/ops/op_graph.h makes them.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_OPS_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_OPS_H_

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/units.h"
#include "ir/job/model_spec.h"
#include "ir/operator_group.h"
#include "ir/profile/op_query.h"

namespace pipeloom::emulator {

// `groups` independent products of m x k by k x n. `result_bytes`: of one
// element of the result, read or written (8 for a gradient that is added to an
// fp32 buffer).
struct GemmOp {
  double m = 0;
  double n = 0;
  double k = 0;
  double groups = 1;
  double result_bytes = 2;
  Precision precision = Precision::kBf16;
  // Tells the layout of the operands; m, n and k are of this very product.
  QueryPass pass = QueryPass::kForward;
  double flops() const { return 2 * m * n * k * groups; }
};

// Fused attention of one GPU's share of the heads and tokens, over sequences
// of `mean_length`.
struct AttentionOp {
  double flops = 0;  // As counted: causal at half.
  double bytes = 0;  // Q, K, V and output once.
  double mean_length = 0;
  int64_t head_dim = 0;   // Of queries and keys.
  int64_t value_dim = 0;  // 0: head_dim.
  bool causal = false;
  bool backward = false;
  double tokens = 0;  // Queries.
  double heads = 0;
  double kv_heads = 0;
  int64_t window = 0;  // Tokens of a block; 0: none.
};

// What a MemoryOp is, for costs measured by kind.
enum class MemoryKind {
  kOther,
  kNorm,        // With the residual sum before it.
  kActivation,  // Of a plain feed-forward part.
  kGatedActivation,
  kRotary,
  kEmbedding,
  kLoss,  // Softmax and cross-entropy.
  kPermutation,
  kModulation,
  kOptimizer,
};

// Bound by memory bandwidth. `rows` x `width` elements of the result, where
// it has that form.
struct MemoryOp {
  double bytes = 0;
  MemoryKind kind = MemoryKind::kOther;
  double rows = 0;
  double width = 0;
  bool backward = false;
};

// Work that is given as a count: convolutional parts.
struct FixedOp {
  double flops = 0;
  double bytes = 0;
};

enum class Collective { kAllGather, kReduceScatter, kAllToAll, kRing };

// Where a collective's group lies.
enum class GroupKind {
  kTensor,
  kContext,
  kExpert,
  kData,        // GPUs with equal weights: dp x cp.
  kExpertData,  // The same for experts.
};

// `bytes`: of the gathered tensor for all-gather and reduce-scatter; what one
// GPU sends for all-to-all; one hop's for a ring of size - 1 hops.
struct CollectiveOp {
  Collective kind = Collective::kAllGather;
  GroupKind group = GroupKind::kTensor;
  int64_t size = 1;
  double bytes = 0;
};

using Op = std::variant<GemmOp, AttentionOp, MemoryOp, FixedOp, CollectiveOp>;

// Lasts as long as the longer of the two streams.
struct OpStep {
  std::vector<Op> compute{};
  std::vector<Op> communication{};
};

// The backward comes in two forms. Either is complete: the input gradient is
// reduced over the tensor-, context- and expert-parallel groups when the pass
// that makes it ends.
//
//   split   `backward`, which exposes every collective of the input gradient,
//           and `weight_grad` any time after it, which gathers its inputs again
//   fused   `fused`: each product's weight gradient follows its input gradient;
//           the gather of the product's input runs with the input gradient, the
//           scatter of the input gradient with the weight gradient
//           (Megatron-Core, tensor_parallel/layers.py, does so)
struct LayerOps {
  std::vector<OpStep> forward{};
  std::vector<OpStep> backward{};
  std::vector<OpStep> weight_grad{};
  std::vector<OpStep> fused{};  // Equal to `backward` without weight gradients.
  // What each group runs to make its results again
  // (emulator/stage/layer_memory.h).
  std::array<std::vector<OpStep>, kNumOperatorGroups> again{};
  // Forward, of all GPUs of the rank: matrix products and attention.
  Flops forward_flops{};
};

// How the layer is trained. `input_grad`: the gradient of its input is needed.
struct GradientNeeds {
  bool weights = true;
  bool input = true;
  bool operator==(const GradientNeeds&) const = default;
};

// Choices that are the layer's module's or the call's, not the layer's own.
struct OpOptions {
  Precision precision = Precision::kBf16;
  // Times the layer's own: sparsity that changes from step to step. (0, 1].
  double attention_density = 1;
  bool operator==(const OpOptions&) const = default;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_OPS_H_
