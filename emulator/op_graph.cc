#include "emulator/op_graph.h"

#include <algorithm>

namespace pipeloom::emulator {
namespace {

double Real(int64_t value) { return static_cast<double>(value); }

double CeilDiv(int64_t a, int64_t b) { return Real((a + b - 1) / b); }

class LayerBuilder {
 public:
  LayerBuilder(const LayerSpec& layer, const WorkShape& shape,
               const ParallelLayout& parallel, const GradientNeeds& needs)
      : layer_(layer),
        shape_(shape),
        parallel_(parallel),
        needs_(needs),
        tp_(Real(parallel.tp)),
        cp_(Real(parallel.cp)),
        tokens_(Real(LayerTokens(layer, shape)) / cp_),
        hidden_(Real(layer.hidden)) {}

  LayerOps Build() {
    switch (layer_.kind) {
      case LayerKind::kTransformer:
        if (layer_.attention.kind != AttentionKind::kNone) SelfAttention();
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
    }
    return Finish();
  }

 private:
  bool has_backward() const { return needs_.weights || needs_.input; }

  void Forward(Op op) { ops_.forward.push_back({{op}, {}}); }
  void Backward(Op op) { ops_.backward.push_back({{op}, {}}); }
  void Both(double forward_bytes, double backward_bytes) {
    Forward(MemoryOp{forward_bytes});
    Backward(MemoryOp{backward_bytes});
  }

  // Forward m x n x k with its two gradients.
  void Gemm(double m, double n, double k, double groups = 1,
            bool input_grad = true) {
    Forward(GemmOp{.m = m, .n = n, .k = k, .groups = groups});
    if (input_grad) {
      Backward(GemmOp{.m = m, .n = k, .k = n, .groups = groups});
    }
    weight_grad_.compute.push_back(
        GemmOp{.m = k, .n = n, .k = m, .groups = groups, .result_bytes = 8});
  }

  // Tensor and sequence parallel region, going in: the forward gathers the
  // tokens; the backward scatters their gradient, which the weight gradient
  // hides, and gathers the kept shards again for the weight gradient.
  void Enter(double width) {
    if (parallel_.tp == 1) return;
    const double bytes = tokens_ * width * 2;
    ops_.forward.push_back({{}, {Tensor(Collective::kAllGather, bytes)}});
    entries_.push_back(Tensor(Collective::kReduceScatter, bytes));
    weight_grad_.communication.push_back(Tensor(Collective::kAllGather, bytes));
  }
  // Coming out: the forward scatters partial sums, the backward gathers.
  void Leave(double width) {
    if (parallel_.tp == 1) return;
    const double bytes = tokens_ * width * 2;
    ops_.forward.push_back({{}, {Tensor(Collective::kReduceScatter, bytes)}});
    ops_.backward.push_back({{}, {Tensor(Collective::kAllGather, bytes)}});
  }
  CollectiveOp Tensor(Collective kind, double bytes) const {
    return {.kind = kind,
            .group = GroupKind::kTensor,
            .size = parallel_.tp,
            .bytes = bytes};
  }

  // Norm and residual of a block, on this GPU's part of the sequence.
  void NormAndResidual() {
    const double elements = tokens_ / tp_ * hidden_;
    Both(10 * elements, 14 * elements);
  }

  void Attention(double flops, double mean_length, int64_t head_dim,
                 bool causal, double query_elements, double kv_elements,
                 double ring_bytes) {
    const double share = tp_ * cp_;
    AttentionOp op{.flops = flops / share,
                   .bytes = 2 * (2 * query_elements + kv_elements),
                   .mean_length = mean_length,
                   .head_dim = head_dim,
                   .causal = causal,
                   .backward = false};
    OpStep forward{{op}, {}};
    op.backward = true;
    op.flops *= 2.5;
    op.bytes *= 2;
    OpStep backward{{op}, {}};
    if (parallel_.cp > 1 && ring_bytes > 0) {
      CollectiveOp ring{.kind = Collective::kRing,
                        .group = GroupKind::kContext,
                        .size = parallel_.cp,
                        .bytes = ring_bytes};
      forward.communication.push_back(ring);
      ring.bytes *= 2;  // K, V and their gradients.
      backward.communication.push_back(ring);
    }
    ops_.forward.push_back(std::move(forward));
    ops_.backward.push_back(std::move(backward));
    forward_flops_ += flops;
  }

  void SelfAttention() {
    const AttentionSpec& a = layer_.attention;
    const double heads = CeilDiv(a.heads, parallel_.tp);
    const double kv_heads = CeilDiv(a.kv_heads, parallel_.tp);
    const double head_dim = Real(a.head_dim);
    const double query = heads * head_dim;
    const double kv = 2 * kv_heads * head_dim;
    NormAndResidual();
    Enter(hidden_);
    if (a.query_rank > 0) {
      Gemm(tokens_, CeilDiv(a.query_rank, parallel_.tp), hidden_);
      Gemm(tokens_, query, Real(a.query_rank));
      Gemm(tokens_, kv, hidden_);
    } else {
      Gemm(tokens_, query + kv, hidden_);
    }
    const double rotary = 4 * tokens_ * (query + kv / 2);
    Both(rotary, rotary);
    const double whole_tokens = Real(LayerTokens(layer_, shape_));
    double pairs = shape_.squared_tokens;
    double length = whole_tokens > 0 ? pairs / whole_tokens : 0;
    if (a.kind == AttentionKind::kWindow) {
      pairs = std::min(pairs, whole_tokens * Real(a.window));
      length = std::min(length, Real(a.window));
    }
    const bool causal = a.kind == AttentionKind::kCausal;
    const double width = Real(a.heads) * head_dim;
    Attention((causal ? 2 : 4) * width * pairs, length, a.head_dim, causal,
              tokens_ * query, tokens_ * kv,
              a.kind == AttentionKind::kWindow ? 0 : 2 * tokens_ * kv);
    Gemm(tokens_, hidden_, query);
    Leave(hidden_);
  }

  void CrossAttention() {
    const CrossAttentionSpec& c = layer_.cross_attention;
    const double head_dim = Real(c.head_dim);
    const double width = CeilDiv(c.heads, parallel_.tp) * head_dim;
    const double context = Real(shape_.context_tokens);
    NormAndResidual();
    Enter(hidden_);
    Gemm(tokens_, width, hidden_);
    Gemm(context, 2 * width, Real(c.context_width));
    const double whole_tokens = Real(LayerTokens(layer_, shape_));
    Attention(4 * Real(c.heads) * head_dim * shape_.context_pairs,
              whole_tokens > 0 ? shape_.context_pairs / whole_tokens : 0,
              c.head_dim, false, tokens_ * width, context * 2 * width, 0);
    Gemm(tokens_, hidden_, width);
    Leave(hidden_);
    // The forward FLOPs below count the context's products per token.
    context_flops_ += 2 * 2 * Real(c.context_width) * Real(c.heads) * head_dim *
                      (context - whole_tokens);
  }

  // `groups` feed-forward networks of rows x hidden x inner each.
  void Ffn(double rows, double inner, double groups) {
    const bool gated = layer_.ffn.gated;
    Gemm(rows, (gated ? 2 : 1) * inner, hidden_, groups);
    const double elements = rows * inner * groups;
    Both((gated ? 6 : 4) * elements, (gated ? 10 : 6) * elements);
    Gemm(rows, hidden_, inner, groups);
  }

  void FeedForward() {
    NormAndResidual();
    Enter(hidden_);
    Ffn(tokens_, CeilDiv(layer_.ffn.hidden, parallel_.tp), 1);
    Leave(hidden_);
  }

  void Experts() {
    const FfnSpec& f = layer_.ffn;
    NormAndResidual();
    Gemm(tokens_ / tp_, Real(f.experts), hidden_);
    Enter(hidden_);
    const double routed = tokens_ * Real(f.experts_per_token);
    const double local = CeilDiv(f.experts, parallel_.ep);
    const double inner = CeilDiv(f.expert_hidden, parallel_.tp);
    const CollectiveOp exchange{.kind = Collective::kAllToAll,
                                .group = GroupKind::kExpert,
                                .size = parallel_.ep,
                                .bytes = routed / tp_ * hidden_ * 2};
    const auto all_to_all = [&] {
      if (parallel_.ep == 1) return;
      ops_.forward.push_back({{}, {exchange}});
      ops_.backward.push_back({{}, {exchange}});
    };
    // Gather and scatter of rows by expert.
    const double permutation = 4 * routed / tp_ * hidden_;
    Both(permutation, permutation);
    all_to_all();
    // Experts that no token reaches are not run.
    const double used = std::min(local, std::max(routed, 1.0));
    Ffn(routed / used, inner, used);
    all_to_all();
    Both(permutation, permutation);
    if (f.shared_experts > 0) {
      Ffn(tokens_, inner * Real(f.shared_experts), 1);
    }
    Leave(hidden_);
  }

  void Embedding() {
    const double elements = tokens_ * hidden_;
    Forward(MemoryOp{4 * elements});
    weight_grad_.compute.push_back(MemoryOp{10 * elements});
    if (parallel_.tp == 1) return;
    ops_.forward.push_back(
        {{}, {Tensor(Collective::kReduceScatter, 2 * elements)}});
    weight_grad_.communication.push_back(
        Tensor(Collective::kAllGather, 2 * elements));
  }

  void LossHead() {
    const double vocab = CeilDiv(layer_.vocab, parallel_.tp);
    NormAndResidual();
    Enter(hidden_);
    Gemm(tokens_, vocab, hidden_);
    Both(8 * tokens_ * vocab, 6 * tokens_ * vocab);
  }

  // Split by output and by input width in turn, as a feed-forward network.
  void Linears() {
    const std::vector<LinearSpec>& linears = layer_.linears;
    Enter(Real(linears.front().in));
    if (!needs_.input) entries_.clear();
    for (size_t i = 0; i < linears.size(); ++i) {
      const bool by_output = i % 2 == 0;
      const int64_t one = 1;
      const double in =
          CeilDiv(linears[i].in, by_output ? one : int64_t{parallel_.tp});
      const double out =
          CeilDiv(linears[i].out, by_output ? int64_t{parallel_.tp} : one);
      Gemm(tokens_, out, in, 1, i > 0 || needs_.input);
      if (i + 1 < linears.size()) {
        Both(4 * tokens_ * out, 6 * tokens_ * out);
      }
    }
    Leave(Real(linears.back().out));
  }

  void FixedWork() {
    const double tokens = Real(LayerTokens(layer_, shape_));
    const double instances = Real(shape_.instances);
    const double flops = layer_.fixed_flops_per_token * tokens +
                         layer_.fixed_flops_per_instance * instances;
    const double kept = layer_.fixed_activation_bytes_per_token * tokens +
                        layer_.fixed_activation_bytes_per_instance * instances;
    // Each kept tensor is written once and read once.
    const FixedOp op{.flops = flops / (tp_ * cp_),
                     .bytes = 2 * kept / (tp_ * cp_)};
    Forward(op);
    Backward(op);
    weight_grad_.compute.push_back(op);
    forward_flops_ += flops;
  }

  LayerOps Finish() {
    if (!has_backward()) {
      ops_.backward.clear();
    } else {
      std::reverse(ops_.backward.begin(), ops_.backward.end());
    }
    if (needs_.weights) {
      for (Op& op : entries_) weight_grad_.communication.push_back(op);
      if (!weight_grad_.compute.empty()) {
        ops_.weight_grad.push_back(std::move(weight_grad_));
      }
    } else if (has_backward()) {
      // Nothing hides the scatter of the input gradient.
      for (Op& op : entries_) ops_.backward.push_back({{}, {op}});
    }
    if (layer_.kind != LayerKind::kEmbedding) {
      forward_flops_ += 2 * Real(ActiveMatrixParameters(layer_)) *
                            Real(LayerTokens(layer_, shape_)) +
                        context_flops_;
    }
    ops_.forward_flops = {forward_flops_};
    return std::move(ops_);
  }

  const LayerSpec& layer_;
  const WorkShape& shape_;
  const ParallelLayout& parallel_;
  const GradientNeeds needs_;
  const double tp_;
  const double cp_;
  const double tokens_;  // Of one context-parallel share.
  const double hidden_;
  LayerOps ops_{};
  OpStep weight_grad_{};
  std::vector<Op> entries_{};  // Scatters of input gradients.
  double forward_flops_ = 0;
  double context_flops_ = 0;
};

}  // namespace

int64_t LayerTokens(const LayerSpec& layer, const WorkShape& shape) {
  return layer.on_output_tokens ? shape.output_tokens : shape.tokens;
}

LayerOps BuildLayerOps(const LayerSpec& layer, const WorkShape& shape,
                       const ParallelLayout& parallel,
                       const GradientNeeds& needs) {
  return LayerBuilder(layer, shape, parallel, needs).Build();
}

}  // namespace pipeloom::emulator
