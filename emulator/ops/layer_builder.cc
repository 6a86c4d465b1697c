#include "emulator/ops/layer_builder.h"

#include <algorithm>
#include <utility>

#include "base/numeric.h"
#include "emulator/ops/layer_tokens.h"

namespace pipeloom::emulator {

LayerBuilder::LayerBuilder(const LayerSpec& layer, const WorkShape& shape,
                           const ParallelLayout& parallel,
                           const GradientNeeds& needs, const OpOptions& options)
    : layer_(layer),
      shape_(shape),
      parallel_(parallel),
      needs_(needs),
      options_(options),
      tp_(Real(parallel.tp)),
      cp_(Real(parallel.cp)),
      whole_tokens_(Real(LayerTokens(layer, shape))),
      tokens_(whole_tokens_ / cp_),
      hidden_(Real(layer.hidden)),
      element_bytes_(options.precision == Precision::kFp32 ? 4 : 2) {}

LayerOps LayerBuilder::Build() {
  switch (layer_.kind) {
    case LayerKind::kTransformer:
      Modulation();
      if (layer_.attention.kind != AttentionKind::kNone) {
        SelfAttention();
      } else if (layer_.state_space.heads > 0) {
        StateSpace();
      } else if (layer_.delta_net.value_heads > 0) {
        DeltaNet();
      }
      if (layer_.cross_attention.heads > 0) CrossAttention();
      if (layer_.ffn.experts > 0) {
        Experts();
      } else if (layer_.ffn.hidden > 0) {
        FeedForward();
      }
      break;
    case LayerKind::kEmbedding:
      Embedding();
      break;
    case LayerKind::kLossHead:
      LossHead();
      break;
    case LayerKind::kLinears:
      Linears();
      break;
    case LayerKind::kFixedWork:
      FixedWork();
      break;
    case LayerKind::kConvolutions:
      Convolutions();
      break;
  }
  return Finish();
}

double LayerBuilder::share(int64_t width) const {
  return Real(CeilDiv(width, parallel_.tp));
}

void LayerBuilder::Stream(MemoryKind kind, double rows, double width,
                          double forward_bytes, double backward_bytes) {
  const double scale = element_bytes_ / 2;
  MemoryOp op{.bytes = forward_bytes * scale,
              .kind = kind,
              .rows = rows,
              .width = width};
  Forward(op);
  op.bytes = backward_bytes * scale;
  op.backward = true;
  Backward(op);
}

void LayerBuilder::Gemm(double m, double n, double k, double groups,
                        bool input_grad) {
  GemmOp op{.m = m,
            .n = n,
            .k = k,
            .groups = groups,
            .result_bytes = element_bytes_,
            .precision = options_.precision,
            .keeps_precision = keeps_precision_};
  Forward(op);
  if (options_.adapter_rank > 0) {
    FrozenGradient(std::move(op), input_grad);
    return;
  }
  const GemmOp weight_grad{.m = k,
                           .n = n,
                           .k = m,
                           .groups = groups,
                           .result_bytes = 8,
                           .precision = options_.precision,
                           .pass = QueryPass::kWeightGrad,
                           .keeps_precision = keeps_precision_};
  weight_grad_.compute.push_back(weight_grad);
  // The backward's steps are in forward order: the last one runs first.
  OpStep fused_weight_grad{{weight_grad}, {}};
  OpStep fused_input_grad{};
  if (entry_.has_value()) {
    weight_grad_.communication.push_back(entry_->gather);
    fused_input_grad.communication.push_back(entry_->gather);
    if (input_grad) {
      ops_.backward.push_back({{}, {entry_->scatter}});
      fused_weight_grad.communication.push_back(entry_->scatter);
    }
    entry_.reset();
  }
  if (input_grad) {
    op.n = k;
    op.k = n;
    op.pass = QueryPass::kInputGrad;
    ops_.backward.push_back({{op}, {}});
    fused_input_grad.compute.push_back(op);
  }
  ops_.fused.push_back(std::move(fused_weight_grad));
  if (!fused_input_grad.compute.empty() ||
      !fused_input_grad.communication.empty()) {
    ops_.fused.push_back(std::move(fused_input_grad));
  }
}

void LayerBuilder::FrozenGradient(GemmOp op, bool input_grad) {
  if (input_grad) {
    if (entry_.has_value()) {
      entry_->scatter.exposed = true;
      Backward(OpStep{{}, {entry_->scatter}});
    }
    std::swap(op.n, op.k);
    op.pass = QueryPass::kInputGrad;
    Backward(op);
  }
  entry_.reset();
}

void LayerBuilder::Backward(OpStep step) {
  ops_.backward.push_back(step);
  ops_.fused.push_back(std::move(step));
}

void LayerBuilder::WeightGrad(Op op) {
  weight_grad_.compute.push_back(op);
  ops_.fused.push_back({{op}, {}});
}

void LayerBuilder::EnterProduct(double width) {
  if (parallel_.tp == 1) return;
  const double bytes = tokens_ * width * element_bytes_;
  CollectiveOp gather = Tensor(Collective::kAllGather, bytes);
  // An adapter needs the whole input too, which a product by parts never has.
  gather.exposed = shared_entry_;
  ops_.forward.push_back({{}, {gather}});
  gather.exposed = false;
  entry_ = {.gather = gather,
            .scatter = Tensor(Collective::kReduceScatter, bytes)};
}

void LayerBuilder::Enter(double width) {
  if (parallel_.tp == 1) return;
  const double bytes = tokens_ * width * element_bytes_;
  ops_.forward.push_back({{}, {Tensor(Collective::kAllGather, bytes)}});
  Backward(OpStep{{}, {Tensor(Collective::kReduceScatter, bytes)}});
}

void LayerBuilder::Leave(double width) {
  if (parallel_.tp == 1) return;
  const double bytes = tokens_ * width * element_bytes_;
  ops_.forward.push_back({{}, {Tensor(Collective::kReduceScatter, bytes)}});
  Backward(OpStep{{}, {Tensor(Collective::kAllGather, bytes)}});
}

CollectiveOp LayerBuilder::Tensor(Collective kind, double bytes) const {
  return {.kind = kind,
          .group = GroupKind::kTensor,
          .size = parallel_.tp,
          .bytes = bytes};
}

void LayerBuilder::MadeAgain(OperatorGroup group, size_t begin) {
  std::vector<OpStep>& again = ops_.again[static_cast<size_t>(group)];
  again.insert(again.end(),
               ops_.forward.begin() + static_cast<std::ptrdiff_t>(begin),
               ops_.forward.end());
}

void LayerBuilder::NormAgain(MemoryKind kind, double rows, double width) {
  ops_.again[static_cast<size_t>(OperatorGroup::kNorms)].push_back(
      {{MemoryOp{.bytes = 2 * element_bytes_ * rows * width,
                 .kind = kind,
                 .rows = rows,
                 .width = width}},
       {}});
}

void LayerBuilder::NormAndResidual() {
  const double rows = tokens_ / tp_;
  NormAgain(MemoryKind::kNorm, rows, hidden_);
  Stream(MemoryKind::kNorm, rows, hidden_, 10 * rows * hidden_,
         14 * rows * hidden_);
}

void LayerBuilder::BiasGradient(double rows, double width) {
  if (!layer_.biases || !needs_.weights || options_.adapter_rank > 0) return;
  Backward(MemoryOp{.bytes = element_bytes_ * rows * width / kPyTorchShare,
                    .backward = true});
}

void LayerBuilder::EndBlock(bool has_bias) {
  const double rows = tokens_ / tp_;
  if (has_bias) BiasGradient(rows, hidden_);
  if (!layer_.dropout) return;
  // The kernel of the residual sum draws the mask, a byte an element; the
  // gradient is no longer that of the sum.
  const double elements = rows * hidden_ / kPyTorchShare;
  Forward(MemoryOp{.bytes = elements});
  Backward(
      MemoryOp{.bytes = (2 * element_bytes_ + 1) * elements, .backward = true});
}

LayerOps LayerBuilder::Finish() {
  if (!has_backward()) {
    ops_.backward.clear();
    ops_.fused.clear();
  }
  std::reverse(ops_.backward.begin(), ops_.backward.end());
  std::reverse(ops_.fused.begin(), ops_.fused.end());
  if (!needs_.weights) {
    ops_.fused = ops_.backward;
  } else if (!weight_grad_.compute.empty()) {
    ops_.weight_grad.push_back(std::move(weight_grad_));
  }
  if (layer_.kind != LayerKind::kEmbedding &&
      layer_.kind != LayerKind::kConvolutions) {
    forward_flops_ += 2 * Real(ActiveMatrixParameters(layer_)) * whole_tokens_;
  }
  ops_.forward_flops = {forward_flops_};
  return std::move(ops_);
}

}  // namespace pipeloom::emulator
