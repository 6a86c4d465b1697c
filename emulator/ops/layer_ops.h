// Operators, and the lists of operators that a layer runs in each pass on one
// GPU. emulator/ops/op_graph.h makes them.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_OPS_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_OPS_H_

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/units.h"
#include "ir/job/model_spec.h"
#include "ir/job/training_setup.h"
#include "ir/operator_group.h"
#include "ir/profile/op_query.h"

namespace pipeloom::emulator {

// `groups` independent products of m x k by k x n.
struct GemmOp {
  double m = 0;
  double n = 0;
  double k = 0;
  double groups = 1;
  double result_bytes = 2;
  Precision precision = Precision::kBf16;
  // Determines the layout of the operands; m, n and k are those of this
  // product.
  QueryPass pass = QueryPass::kForward;
  // Whether it runs in `precision` in every setup
  // (TrainingSetup::fp8_products).
  bool keeps_precision = false;
  double flops() const { return 2 * m * n * k * groups; }
};

// Fused attention over one GPU's share of the heads and tokens, with sequences
// of `mean_length`.
struct AttentionOp {
  double flops = 0;  // Causal attention counts half.
  double bytes = 0;  // Q, K, V and output, each once.
  double mean_length = 0;
  int64_t head_dim = 0;   // Width of queries and keys.
  int64_t value_dim = 0;  // Width of values; 0: head_dim.
  bool causal = false;
  bool backward = false;
  double tokens = 0;  // Number of queries.
  double heads = 0;
  double kv_heads = 0;
  int64_t window = 0;  // Tokens of a block, or seen if causal; 0: all.
};

// The kinds of MemoryOp that are measured separately.
enum class MemoryKind {
  kOther,
  kNorm,        // Includes the residual sum before it.
  kActivation,  // In a feed-forward part without gate.
  kGatedActivation,
  kRotary,
  kEmbedding,
  kLoss,  // Softmax and cross-entropy.
  kPermutation,
  kModulation,
  kOptimizer,
};

// An operator bound by memory bandwidth, with `rows` x `width` elements of the
// result if it has that form.
struct MemoryOp {
  double bytes = 0;
  MemoryKind kind = MemoryKind::kOther;
  double rows = 0;
  double width = 0;
  bool backward = false;
};

// Work given by its counts: convolutional parts, kernels of token mixers.
struct FixedOp {
  double flops = 0;
  double bytes = 0;
  // The most operations of a multiprocessor in a cycle, where products of small
  // blocks alternate with other work, as in kernels of token mixers; 0: those
  // of large products.
  double flops_per_cycle = 0;
  // Tiles of 128 x 128 elements that are worked on at once, which may leave
  // multiprocessors idle: a scan has one for each state. 0: enough for all.
  double tiles = 0;
};

// The kinds of collectives.
enum class Collective { kAllGather, kReduceScatter, kAllToAll, kRing };

// The group of GPUs that a collective runs over.
enum class GroupKind {
  kTensor,
  kContext,
  kExpert,
  kData,        // GPUs with equal weights: dp x cp.
  kExpertData,  // GPUs with equal experts.
};

// A collective. `bytes` is the size of the gathered tensor for all-gather and
// reduce-scatter, what one GPU sends for all-to-all, and one hop for a ring of
// size - 1 hops.
struct CollectiveOp {
  Collective kind = Collective::kAllGather;
  GroupKind group = GroupKind::kTensor;
  int64_t size = 1;
  double bytes = 0;
  // For an all-to-all that sends each row once to every GPU with any of its
  // experts (ExpertDispatch::kEachGpu): the experts of a row. `bytes` then
  // counts each row once. 0: equal parts go to all members.
  int64_t choices = 0;
  // Whether nothing hides it in any setup: products that take its result, or
  // whose result it takes, are not split, and no other is at hand.
  bool exposed = false;
};

using Op = std::variant<GemmOp, AttentionOp, MemoryOp, FixedOp, CollectiveOp>;

// A step of a pass. It lasts as long as the longer of its two streams.
struct OpStep {
  std::vector<Op> compute{};
  std::vector<Op> communication{};
};

// Operators of one layer by pass. The backward comes in two forms. Either is
// complete: the input gradient is reduced over the tensor-, context- and
// expert-parallel groups when the pass that makes it ends.
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
  // Steps that recompute the results of each operator group
  // (emulator/stage/layer_memory.h). Indexed by OperatorGroup.
  std::array<std::vector<OpStep>, kNumOperatorGroups> again{};
  // Matrix products and attention in the forward, on all GPUs of the rank.
  Flops forward_flops{};
};

// Which gradients of a layer are needed: those of its weights, that of its
// input.
struct GradientNeeds {
  bool weights = true;
  bool input = true;
  bool operator==(const GradientNeeds&) const = default;
};

// Options set by the layer's module or by the call instead of by the layer.
struct OpOptions {
  Precision precision = Precision::kBf16;
  // Factor on the layer's own density, for sparsity that changes from step to
  // step. In (0, 1].
  double attention_density = 1;
  ExpertDispatch dispatch = ExpertDispatch::kEachExpert;
  double expert_imbalance = 1;
  bool fused_experts = false;  // As in TrainingSetup.
  // Whether fused attention takes fp8: its inputs and results are cast, and
  // exchanged so.
  bool fp8_attention = false;
  // ModuleSpec::adapter_rank. `GradientNeeds::weights` then means the adapters.
  int64_t adapter_rank = 0;
  bool operator==(const OpOptions&) const = default;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_OPS_H_
