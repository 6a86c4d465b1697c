// Puts the operators of one layer together: what emulator/ops/*_ops.cc share.
//
// The functions append forward operators, and backward ones in forward order;
// Finish() reverses those. Not for use outside of emulator/.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_BUILDER_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_BUILDER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/ops/layer_ops.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

class LayerBuilder {
 public:
  // Everything must outlive the builder.
  LayerBuilder(const LayerSpec& layer, const WorkShape& shape,
               const ParallelLayout& parallel, const GradientNeeds& needs,
               const OpOptions& options);

  LayerOps Build();

 private:
  // attention_ops.cc
  void SelfAttention();
  // Projections of queries, keys and values.
  void QueryKeyValue();
  void LowRankQueryKeyValue();
  void FusedAttention(AttentionOp op, double whole_flops, double kv_elements);

  // dit_ops.cc
  void CrossAttention();
  // The product that makes shifts, scales and gates, once an instance.
  void Modulation();
  // Their use on one block's input and output.
  void Modulate();

  // ffn_ops.cc
  void FeedForward();
  // `groups` feed-forward networks of rows x hidden x inner each.
  void Ffn(double rows, double inner, double groups);

  // moe_ops.cc
  void Experts();
  void Permute(double rows);
  void ExchangeRows(double rows);

  // conv_ops.cc
  void Convolutions();
  void FixedWork();

  // edge_ops.cc
  void Embedding();
  void LossHead();
  void Linears();

  // layer_builder.cc
  bool has_backward() const { return needs_.weights || needs_.input; }
  void Forward(Op op) { ops_.forward.push_back({{op}, {}}); }
  // Appends to both forms of the backward.
  void Backward(OpStep step);
  void Backward(Op op) { Backward(OpStep{{op}, {}}); }
  // Appends a weight gradient, after whose input gradient, if any, is to be
  // appended next.
  void WeightGrad(Op op);
  // A memory-bound operator of rows x width and its gradient, by their bytes.
  void Stream(MemoryKind kind, double rows, double width, double forward_bytes,
              double backward_bytes);
  // Forward steps from `begin` on are what the group runs again.
  size_t Mark() const { return ops_.forward.size(); }
  void MadeAgain(OperatorGroup group, size_t begin);
  // A norm without the residual sum, or its modulation, of the block's input.
  void NormAgain(MemoryKind kind, double rows, double width);
  // Forward m x n x k with its two gradients.
  void Gemm(double m, double n, double k, double groups = 1,
            bool input_grad = true);
  // Enters a tensor and sequence parallel region whose first operator is the
  // product added next: the forward gathers the tokens; the backward scatters
  // their gradient, and the weight gradient needs the kept shards gathered
  // again.
  void EnterProduct(double width);
  // Enters one whose first operator is no product, or one that keeps its input
  // as it is (rows sent to experts): nothing is gathered again, and nothing
  // hides the scatter.
  void Enter(double width);
  // Coming out: the forward scatters partial sums, the backward gathers.
  void Leave(double width);
  // Norm and residual of a block, on this GPU's part of the sequence.
  void NormAndResidual();
  CollectiveOp Tensor(Collective kind, double bytes) const;
  LayerOps Finish();

  double share(int64_t width) const;  // Of tensor parallelism, rounded up.

  const LayerSpec& layer_;
  const WorkShape& shape_;
  const ParallelLayout& parallel_;
  const GradientNeeds needs_;
  const OpOptions& options_;
  const double tp_;
  const double cp_;
  const double whole_tokens_;
  const double tokens_;  // Of one context-parallel share.
  const double hidden_;
  const double element_bytes_;  // Of an activation.
  LayerOps ops_{};
  OpStep weight_grad_{};
  // Of the region entered last, until its product is added.
  struct Entry {
    CollectiveOp gather{};
    CollectiveOp scatter{};
  };
  std::optional<Entry> entry_{};
  double forward_flops_ = 0;  // Besides two a matrix parameter and token.
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_BUILDER_H_
