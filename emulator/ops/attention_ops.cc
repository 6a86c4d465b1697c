// Self-attention: plain, grouped-query, low-rank (MFA, MLA), windowed, sparse,
// and shared over context-parallel GPUs.
#include <algorithm>
#include <utility>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

// A sum of two tensors of 16 bits: reads both, writes one.
constexpr double kSumBytes = 6;
// An element that enters or leaves fp8 attention: from 16 bits, or to them.
constexpr double kFp8CastBytes = 3;

bool LayerBuilder::RingSteps(double kv_elements) const {
  return parallel_.cp > 1 && kv_elements > 0 &&
         parallel_.context == ContextParallelism::kRing;
}

// A causal sequence is cut so that every step has the same work: the first is
// causal over the GPU's own tokens, each other one whole over half of the keys
// that arrived. The results of each are summed: outputs, or gradients of
// queries, keys and values.
std::vector<Op> LayerBuilder::InRingSteps(AttentionOp op,
                                          double kv_elements) const {
  const double outputs = op.tokens * op.heads * Real(op.head_dim);
  const double summed = op.backward ? outputs + kv_elements : outputs;
  op.flops /= cp_;
  op.mean_length /= cp_;
  std::vector<Op> steps = {op};
  op.causal = false;
  for (int32_t i = 1; i < parallel_.cp; ++i) {
    steps.push_back(op);
    steps.push_back(MemoryOp{.bytes = kSumBytes / 2 * element_bytes_ * summed,
                             .backward = op.backward});
  }
  return steps;
}

// As TransformerEngine's flash_attn_a2a_communicate: PyTorch copies each tensor
// so that what goes to one GPU lies together, and again to put into order what
// arrived. Copies overlap with the exchanges of the other tensors.
std::vector<OpStep> LayerBuilder::Exchange(const std::vector<double>& elements,
                                           double element_bytes) const {
  const double width = element_bytes;
  const auto copy = [&](double count) {
    return MemoryOp{.bytes = 2 * width * count / kPyTorchShare};
  };
  OpStep first{{copy(elements.front())}, {}};
  OpStep middle;
  OpStep last{{copy(elements.back())}, {}};
  for (size_t i = 0; i < elements.size(); ++i) {
    middle.communication.push_back(CollectiveOp{.kind = Collective::kAllToAll,
                                                .group = GroupKind::kContext,
                                                .size = parallel_.cp,
                                                .bytes = width * elements[i]});
    if (i > 0) middle.compute.push_back(copy(elements[i]));
    if (i + 1 < elements.size()) middle.compute.push_back(copy(elements[i]));
  }
  return {std::move(first), std::move(middle), std::move(last)};
}

// Appends fused attention and what context parallelism exchanges for it.
// `kv_elements`: keys and values of this GPU's tokens and heads; 0: they need
// no exchange.
void LayerBuilder::FusedAttention(AttentionOp op, double whole_flops,
                                  double kv_elements) {
  forward_flops_ += whole_flops;
  op.flops = whole_flops / (tp_ * cp_);
  const double all_elements = op.bytes / element_bytes_;
  OpStep forward{{op}, {}};
  if (RingSteps(kv_elements)) forward.compute = InRingSteps(op, kv_elements);
  // Five products instead of two.
  op.backward = true;
  op.flops *= 2.5;
  op.bytes *= 2;
  OpStep backward{{op}, {}};
  if (RingSteps(kv_elements)) backward.compute = InRingSteps(op, kv_elements);
  if (options_.fp8_attention) {
    // Queries, keys, values and outputs; then the gradients of all.
    const double bytes = kFp8CastBytes * all_elements;
    forward.compute.push_back(MemoryOp{.bytes = bytes});
    backward.compute.push_back(MemoryOp{.bytes = bytes, .backward = true});
  }
  if (parallel_.cp == 1 || kv_elements <= 0) {
    ops_.forward.push_back(std::move(forward));
    Backward(std::move(backward));
    return;
  }
  CollectiveOp exchange{.kind = Collective::kRing,
                        .group = GroupKind::kContext,
                        .size = parallel_.cp,
                        .bytes = element_bytes_ * kv_elements};
  switch (parallel_.context) {
    case ContextParallelism::kRing:
      forward.communication.push_back(exchange);
      exchange.bytes *= 2;  // Keys, values and their gradients.
      backward.communication.push_back(exchange);
      ops_.forward.push_back(std::move(forward));
      Backward(std::move(backward));
      break;
    case ContextParallelism::kAllGather:
      // The backward gathers again and scatters the gradients afterwards; its
      // steps are appended in forward order.
      exchange.bytes *= cp_;
      exchange.kind = Collective::kReduceScatter;
      Backward(OpStep{{}, {exchange}});
      exchange.kind = Collective::kAllGather;
      ops_.forward.push_back({{}, {exchange}});
      ops_.forward.push_back(std::move(forward));
      Backward(std::move(backward));
      Backward(OpStep{{}, {exchange}});
      break;
    case ContextParallelism::kAllToAll: {
      // Exchanges queries, keys and values before, the outputs after; the
      // backward, whose steps are appended in forward order, does the reverse.
      const double values = Real(op.value_dim > 0 ? op.value_dim : op.head_dim);
      const double heads = op.tokens * op.heads;
      const double keys =
          kv_elements * Real(op.head_dim) / (Real(op.head_dim) + values);
      const double width = options_.fp8_attention ? 1 : element_bytes_;
      const std::vector<OpStep> inputs = Exchange(
          {heads * Real(op.head_dim), keys, kv_elements - keys}, width);
      const std::vector<OpStep> outputs = Exchange({heads * values}, width);
      const auto append = [this](const std::vector<OpStep>& steps) {
        ops_.forward.insert(ops_.forward.end(), steps.begin(), steps.end());
      };
      append(inputs);
      ops_.forward.push_back(std::move(forward));
      append(outputs);
      for (const OpStep& step : inputs) Backward(step);
      Backward(std::move(backward));
      for (const OpStep& step : outputs) Backward(step);
      break;
    }
  }
}

void LayerBuilder::QueryKeyValue() {
  const AttentionSpec& a = layer_.attention;
  const double heads = share(a.heads);
  const double kv_heads = share(a.kv_heads);
  const double head_dim = Real(a.head_dim);
  const double value_dim = Real(a.value_width());
  const double columns = heads * (head_dim + (a.output_gate ? value_dim : 0)) +
                         kv_heads * (head_dim + value_dim);
  const size_t begin = Mark();
  shared_entry_ = options_.adapter_rank > 0;
  EnterProduct(hidden_);
  shared_entry_ = false;
  Gemm(tokens_, columns, hidden_);
  BiasGradient(tokens_, columns);
  Adapter(hidden_, Real(a.projected()), /*enters=*/true);
  MadeAgain(OperatorGroup::kProjections, begin);
}

// Projections to a low rank work on this GPU's part of the sequence with whole
// weights; the small result is gathered.
void LayerBuilder::LowRankQueryKeyValue() {
  const AttentionSpec& a = layer_.attention;
  const double heads = share(a.heads);
  const double head_dim = Real(a.head_dim);
  const double rows = tokens_ / tp_;
  size_t begin = Mark();
  const auto down = [&](double width) {
    Gemm(rows, width, hidden_);
    Stream(MemoryKind::kNorm, rows, width, 4 * rows * width, 6 * rows * width);
    NormAgain(MemoryKind::kNorm, rows, width);
    begin = Mark();
    EnterProduct(width);
  };
  if (a.query_rank > 0) {
    down(Real(a.query_rank));
    Gemm(tokens_, heads * head_dim, Real(a.query_rank));
    MadeAgain(OperatorGroup::kProjections, begin);
    begin = Mark();
  } else {
    EnterProduct(hidden_);
    Gemm(tokens_, heads * head_dim, hidden_);
  }
  if (a.kv_rank > 0) {
    if (a.query_rank == 0) MadeAgain(OperatorGroup::kProjections, begin);
    down(Real(a.kv_rank + a.rope_dim));
    Gemm(tokens_, heads * Real(a.head_dim - a.rope_dim + a.value_width()),
         Real(a.kv_rank));
    MadeAgain(OperatorGroup::kProjections, begin);
    return;
  }
  // The few shared heads are whole on every GPU.
  const double kv = share(a.kv_heads) * (head_dim + Real(a.value_width()));
  if (a.kv_heads < parallel_.tp) {
    Gemm(rows, kv, hidden_);
    Enter(kv);
  } else {
    EnterProduct(hidden_);
    Gemm(tokens_, kv, hidden_);
  }
  MadeAgain(OperatorGroup::kProjections, begin);
}

void LayerBuilder::SelfAttention() {
  const AttentionSpec& a = layer_.attention;
  const double heads = share(a.heads);
  // Low-rank keys are spread to all heads before attention.
  const double kv_heads = a.kv_rank > 0 ? heads : share(a.kv_heads);
  const double head_dim = Real(a.head_dim);
  const double value_dim = Real(a.value_width());
  NormAndResidual();
  Modulate();
  if (a.query_rank > 0 || a.kv_rank > 0) {
    LowRankQueryKeyValue();
  } else {
    QueryKeyValue();
  }
  const double query = heads * head_dim;
  const double kv = kv_heads * (head_dim + value_dim);
  size_t begin = Mark();
  if (a.query_key_norms) {
    const double rows = tokens_ * (heads + kv_heads);
    Stream(MemoryKind::kNorm, rows, head_dim, 4 * rows * head_dim,
           6 * rows * head_dim);
  }
  const double rotary = 4 * tokens_ * (query + kv_heads * head_dim);
  Stream(MemoryKind::kRotary, tokens_, query + kv_heads * head_dim, rotary,
         rotary);
  MadeAgain(OperatorGroup::kProjections, begin);
  const double scale = layer_.downsample * layer_.downsample;
  double pairs = shape_.squared_tokens / (scale * scale);
  double length = whole_tokens_ > 0 ? pairs / whole_tokens_ : 0;
  if (a.kind == AttentionKind::kWindow) {
    pairs = std::min(pairs, whole_tokens_ * Real(a.window));
    length = std::min(length, Real(a.window));
  }
  const bool causal = a.kind == AttentionKind::kCausal;
  if (causal && a.window > 0 && length > Real(a.window)) {
    // A sequence of s > w tokens has w s - w^2 / 2 pairs. Twice that is set, as
    // causal FLOPs are halved below. Mixed lengths are taken as their mean by
    // tokens, which never gives too few pairs.
    pairs = whole_tokens_ * Real(a.window) * (2 - Real(a.window) / length);
  }
  const double flops = (causal ? 1 : 2) * Real(a.heads) *
                       (head_dim + value_dim) * pairs * a.density *
                       options_.attention_density;
  begin = Mark();
  FusedAttention(
      {.bytes = element_bytes_ *
                (tokens_ * heads * (head_dim + value_dim) + tokens_ * kv),
       .mean_length = length,
       .head_dim = a.head_dim,
       .value_dim = a.value_width(),
       .causal = causal,
       .tokens = tokens_,
       .heads = heads,
       .kv_heads = kv_heads,
       .window = a.window},
      flops, a.kind == AttentionKind::kWindow ? 0 : tokens_ * kv);
  if (a.output_gate) {
    // Reads output and gate; backward, the gradient of their product too.
    const double elements = tokens_ * heads * value_dim / kPyTorchShare;
    Stream(MemoryKind::kOther, tokens_, heads * value_dim, 6 * elements,
           10 * elements);
  }
  MadeAgain(OperatorGroup::kCoreAttention, begin);
  Gemm(tokens_, hidden_, heads * value_dim);
  if (a.query_rank == 0 && a.kv_rank == 0) {
    Adapter(Real(a.heads) * value_dim, hidden_, /*enters=*/false);
  }
  Leave(hidden_);
  EndBlock(/*has_bias=*/true);
}

}  // namespace pipeloom::emulator
