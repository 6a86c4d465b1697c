// The operators that one layer runs on one GPU for one WorkShape, under tensor
// parallelism with sequence parallelism, and context parallelism.
//
// Sizes are those of one GPU: widths divided by tp, tokens by cp. A pass is a
// list of OpSteps one after another; a step has a compute stream and a
// communication stream that run side by side.
//
//   forward:     norm | all-gather | QKV | attention | projection |
//                reduce-scatter | norm | all-gather | up | activation | down |
//                reduce-scatter
//
// Counting rules and what is left out: docs/emulator_model.md.
#ifndef PIPELOOM_EMULATOR_OP_GRAPH_H_
#define PIPELOOM_EMULATOR_OP_GRAPH_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "base/units.h"
#include "ir/microbatches.h"
#include "ir/model_spec.h"
#include "ir/parallel_layout.h"

namespace pipeloom::emulator {

// `groups` independent products of m x k by k x n, in 16 bit. `result_bytes`:
// of one element of the result, read or written (8 for a gradient that is
// added to an fp32 buffer).
struct GemmOp {
  double m = 0;
  double n = 0;
  double k = 0;
  double groups = 1;
  double result_bytes = 2;
  double flops() const { return 2 * m * n * k * groups; }
};

// Fused attention.
struct AttentionOp {
  double flops = 0;  // As counted: causal at half.
  double bytes = 0;  // Q, K, V and output once.
  double mean_length = 0;
  int64_t head_dim = 0;
  bool causal = false;
  bool backward = false;
};

// Bound by memory bandwidth: norms, activations, look-ups.
struct MemoryOp {
  double bytes = 0;
};

// Work that is given as a count: convolutional parts.
struct FixedOp {
  double flops = 0;
  double bytes = 0;
};

enum class Collective { kAllGather, kReduceScatter, kAllToAll, kRing };

// Where a collective's group lies.
enum class GroupKind { kTensor, kContext, kExpert };

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

struct LayerOps {
  std::vector<OpStep> forward{};
  std::vector<OpStep> backward{};
  std::vector<OpStep> weight_grad{};
  // Forward, of all GPUs of the rank: matrix products and attention.
  Flops forward_flops{};
};

// How the layer is trained. `input_grad`: the gradient of its input is needed.
struct GradientNeeds {
  bool weights = true;
  bool input = true;
  bool operator==(const GradientNeeds&) const = default;
};

// The layer's tokens: the module's output tokens if it works on those.
int64_t LayerTokens(const LayerSpec& layer, const WorkShape& shape);

// Passes that `needs` rules out are empty. O(1) operators.
LayerOps BuildLayerOps(const LayerSpec& layer, const WorkShape& shape,
                       const ParallelLayout& parallel,
                       const GradientNeeds& needs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OP_GRAPH_H_
