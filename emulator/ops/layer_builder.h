// Builder of the operators of one layer, shared by emulator/ops/*_ops.cc.
//
// The functions append forward operators, and backward ones in forward order;
// Finish() reverses those. Not for use outside of emulator/.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_BUILDER_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_BUILDER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "emulator/ops/layer_ops.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/plan/microbatches.h"

namespace pipeloom::emulator {

// PyTorch's own kernels move their bytes at this share of the rate of kernels
// that are made for the device. From RMS norms of 8 million elements and more,
// PyTorch's against cuDNN's on H200, GB200 and GB300 (NVIDIA cudnn-frontend,
// MIT; medians of 28 pairs): forward 0.77, 0.71 and 0.75; backward, which reads
// its two inputs once more for the weight's gradient, 0.79, 0.72 and 0.74.
inline constexpr double kPyTorchShare = 0.75;

// The builder of one layer.
class LayerBuilder {
 public:
  // REQUIRES: everything passed in outlives the builder.
  LayerBuilder(const LayerSpec& layer, const WorkShape& shape,
               const ParallelLayout& parallel, const GradientNeeds& needs,
               const OpOptions& options);

  // Returns the operators of the layer in all passes. To be called once.
  LayerOps Build();

 private:
  // Defined in attention_ops.cc:
  void SelfAttention();
  // Projections of queries, keys and values.
  void QueryKeyValue();
  void LowRankQueryKeyValue();
  void FusedAttention(AttentionOp op, double whole_flops, double kv_elements);
  // Returns the steps that turn tensors of these numbers of elements, of
  // `element_bytes` each, from shares of the sequence into shares of the heads,
  // or back.
  std::vector<OpStep> Exchange(const std::vector<double>& elements,
                               double element_bytes) const;
  // Returns whether keys and values go round.
  bool RingSteps(double kv_elements) const;
  // Returns the kernels of attention, one for each step of the ring.
  std::vector<Op> InRingSteps(AttentionOp op, double kv_elements) const;

  // Defined in mixer_ops.cc:
  void StateSpace();
  void DeltaNet();
  // Appends what comes ahead of a mixer: the norm and the product that makes
  // `columns` on this GPU, `all_columns` on all. Returns the position in the
  // forward after it.
  size_t MixerInput(double columns, int64_t all_columns);
  // Appends the product of its result, of that many columns.
  void MixerOutput(double columns, int64_t all_columns);
  // Appends the exchange of tensors of these widths over the context-parallel
  // GPUs: from shares of the sequence to shares of the heads, or back.
  void ExchangeHeads(const std::vector<double>& widths);
  // Returns a convolution of `width` channels over the last `kernel` tokens,
  // and its gradients.
  std::array<FixedOp, 2> Convolution(double width, int64_t kernel) const;
  // Appends kernels, each with its operations and bytes a token. Those of the
  // backward are given in the order in which they run.
  void Kernels(double flops_per_cycle, const std::vector<FixedOp>& forward,
               const std::vector<FixedOp>& backward);

  // Defined in adapter_ops.cc:
  // Appends the adapter of a projection from width `in` to width `out`, if the
  // module has adapters. `enters`: its outputs are divided by tp, instead of
  // its inputs.
  void Adapter(double in, double out, bool enters);
  // Appends what tensor-parallel GPUs exchange for it.
  void AdapterExchange(bool enters, double outputs);

  // Defined in dit_ops.cc:
  void CrossAttention();
  // Appends the product that makes shifts, scales and gates, once per instance.
  void Modulation();
  // Appends their application to the input and output of one block.
  void Modulate();

  // Defined in ffn_ops.cc:
  void FeedForward();
  // Appends `groups` feed-forward networks of rows x width x inner each.
  void Ffn(double rows, double width, double inner, double groups);

  // Defined in moe_ops.cc:
  void Experts();
  // Append kernels of an expert that are none of its products.
  void LimitActivation(double elements);
  void AddExpertBias(double rows);
  void Permute(double rows);
  void ExchangeRows(double rows);

  // Defined in conv_ops.cc:
  void Convolutions();
  void FixedWork();

  // Defined in edge_ops.cc:
  void Embedding();
  void LossHead();
  void Linears();

  // Defined in layer_builder.cc:
  bool has_backward() const { return needs_.weights || needs_.input; }
  void Forward(Op op) { ops_.forward.push_back({{op}, {}}); }
  // Appends to both forms of the backward.
  void Backward(OpStep step);
  void Backward(Op op) { Backward(OpStep{{op}, {}}); }
  // Appends a weight gradient. If its product has an input gradient, that is to
  // be appended next.
  void WeightGrad(Op op);
  // Appends a memory-bound operator of rows x width and its gradient, each with
  // its bytes.
  void Stream(MemoryKind kind, double rows, double width, double forward_bytes,
              double backward_bytes);
  // Mark() returns the position in the forward; MadeAgain() records that the
  // group reruns the forward steps from `begin` on.
  size_t Mark() const { return ops_.forward.size(); }
  void MadeAgain(OperatorGroup group, size_t begin);
  // Adds to what recomputing the norms reruns: a norm without the residual sum,
  // or the modulation, of the block's input.
  void NormAgain(MemoryKind kind, double rows, double width);
  // Appends a forward product m x n x k with its two gradients.
  void Gemm(double m, double n, double k, double groups = 1,
            bool input_grad = true);
  // Appends the backward of a product whose weights are frozen: nothing hides
  // the scatter of the input gradient, and nothing is gathered again.
  void FrozenGradient(GemmOp op, bool input_grad);
  // Enters a tensor and sequence parallel region whose first operator is the
  // product appended next: the forward gathers the tokens; the backward
  // scatters their gradient, and the weight gradient has to gather the kept
  // shards again.
  void EnterProduct(double width);
  // Enters a region whose first operator is not a product, or is one that keeps
  // its input unsharded (rows sent to experts): nothing is gathered again, and
  // nothing hides the scatter.
  void Enter(double width);
  // Leaves a region: the forward scatters partial sums, the backward gathers.
  void Leave(double width);
  // Appends norm and residual of a block, on this GPU's part of the sequence.
  void NormAndResidual();
  // Appends the gradient of a bias that was added to rows x width elements,
  // their sum over the rows. The bias itself is added by a kernel that is there
  // anyway.
  void BiasGradient(double rows, double width);
  // Appends what comes between a block's last product and the residual sum.
  void EndBlock(bool has_bias);
  CollectiveOp Tensor(Collective kind, double bytes) const;
  LayerOps Finish();

  // Returns the tensor-parallel share of a width, rounded up.
  double share(int64_t width) const;

  const LayerSpec& layer_;
  const WorkShape& shape_;
  const ParallelLayout& parallel_;
  const GradientNeeds needs_;
  const OpOptions& options_;
  const double tp_;
  const double cp_;
  const double whole_tokens_;
  const double tokens_;  // Tokens of one context-parallel share.
  const double hidden_;
  const double element_bytes_;  // Size of an element of an activation.
  LayerOps ops_{};
  OpStep weight_grad_{};
  // Collectives of the region entered last, until its product is appended.
  struct Entry {
    CollectiveOp gather{};
    CollectiveOp scatter{};
  };
  std::optional<Entry> entry_{};
  bool keeps_precision_ = false;  // Value of GemmOp::keeps_precision.
  bool shared_entry_ = false;     // Whether an adapter takes the same input.
  // In addition to two per matrix parameter and token.
  double forward_flops_ = 0;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_BUILDER_H_
