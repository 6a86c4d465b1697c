// Mixture of experts: router, dispatch and combine, routed and shared experts.
// Tokens are spread over the experts evenly, except that those of the fullest
// GPU are `expert_imbalance` times as many.
#include <algorithm>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {
namespace {

// Bytes that kernels move in the forward and in the backward.
struct KernelBytes {
  double forward = 0;
  double backward = 0;
};

// An element of the activation's result, 16 bits, where gate and input are
// limited ahead of a fused activation (Megatron-Core, fused_bias_geglu.py).
// Forward: both are read and written by the limits, and again by joining them.
// Backward, as PyTorch's clamp_backward: a comparison with each limit (one of
// the gate, two of the input; 3 bytes), of the input both comparisons joined
// (3), the choice between gradient and zero (5, twice), and joining (8).
constexpr KernelBytes kLimits{.forward = 8 + 8, .backward = 9 + 3 + 10 + 8};

// An element of an expert's result to which a bias times the router's
// probability is added (Megatron-Core, experts.py: TEGroupedMLP). Forward: the
// product of bias and fp32 probability is written, added, joined over the
// experts and rounded to 16 bits. Backward: the gradient becomes fp32 and
// again 16 bits, is multiplied and summed for the bias and for the
// probability, and joined.
constexpr KernelBytes kBias{.forward = 4 + 10 + 8 + 6,
                            .backward = 6 + 6 + 12 + 12 + 4};

}  // namespace

void LayerBuilder::LimitActivation(double elements) {
  if (!layer_.ffn.clamped || options_.fused_experts) return;
  Stream(MemoryKind::kOther, elements, 1,
         kLimits.forward / kPyTorchShare * elements,
         kLimits.backward / kPyTorchShare * elements);
}

void LayerBuilder::AddExpertBias(double rows) {
  if (!layer_.ffn.expert_biases || options_.fused_experts) return;
  const double width = Real(layer_.ffn.row_width(layer_.hidden));
  Stream(MemoryKind::kOther, rows, width,
         kBias.forward / kPyTorchShare * rows * width,
         kBias.backward / kPyTorchShare * rows * width);
}

// Appends sorting rows by their experts, or back.
void LayerBuilder::Permute(double rows) {
  const double width = Real(layer_.ffn.row_width(layer_.hidden));
  Stream(MemoryKind::kPermutation, rows, width, 4 * rows * width,
         4 * rows * width);
}

// Appends sending the tokens of `rows` rows, one for each of their experts, to
// the GPUs of those experts, or back.
void LayerBuilder::ExchangeRows(double rows) {
  if (parallel_.ep == 1) return;
  const double width = Real(layer_.ffn.row_width(layer_.hidden));
  CollectiveOp exchange{
      .kind = Collective::kAllToAll,
      .group = GroupKind::kExpert,
      .size = parallel_.ep,
      .bytes = element_bytes_ * rows * width * options_.expert_imbalance};
  if (options_.dispatch == ExpertDispatch::kEachGpu) {
    exchange.choices = layer_.ffn.experts_per_token;
    exchange.bytes /= Real(exchange.choices);
  }
  ops_.forward.push_back({{}, {exchange}});
  Backward(OpStep{{}, {exchange}});
}

void LayerBuilder::Experts() {
  const FfnSpec& f = layer_.ffn;
  NormAndResidual();
  Modulate();
  // The router: a product; softmax and choice in fp32.
  const double rows = tokens_ / tp_;
  Gemm(rows, Real(f.experts), hidden_);
  Stream(MemoryKind::kOther, rows, Real(f.experts), 12 * rows * Real(f.experts),
         12 * rows * Real(f.experts));
  // Experts that tensor parallelism divides work on gathered tokens, as shared
  // experts do; the tokens of the routed ones are kept. Rows that an all-to-all
  // brought are gathered after it, one for each expert of a token
  // (Megatron-LM, token_dispatcher.py: MoEAlltoAllTokenDispatcher).
  const bool divided = parallel_.expert_tp != 1;
  const bool gathers_rows = divided && parallel_.ep > 1 &&
                            options_.dispatch == ExpertDispatch::kEachExpert;
  const bool gathers_tokens = divided && !gathers_rows;
  const auto shared = [&] {
    if (f.shared_experts > 0) {
      Ffn(tokens_, hidden_, share(f.expert_hidden) * Real(f.shared_experts), 1);
    }
  };
  const size_t begin = Mark();
  if (gathers_tokens || f.shared_experts > 0) Enter(hidden_);
  if (f.shared_experts > 0) MadeAgain(OperatorGroup::kProjections, begin);
  if (!gathers_tokens) {
    shared();
    if (f.shared_experts > 0) Leave(hidden_);
  }
  // Into the width of the experts' rows, with whole weights.
  const double width = Real(f.row_width(layer_.hidden));
  if (f.latent > 0) Gemm(rows, width, hidden_);
  const double all = tokens_ * Real(f.experts_per_token);
  const double sent = all / tp_;
  // Rows that the experts of a GPU work on.
  const double routed = (divided ? all : sent) * options_.expert_imbalance;
  const double local = Real(CeilDiv(f.experts, int64_t{parallel_.ep}));
  const double inner = divided ? share(f.expert_hidden) : Real(f.expert_hidden);
  // Rows of an all-to-all arrive by sender, and those of several experts are
  // sorted once more.
  const bool sorted = parallel_.ep > 1 && local > 1 &&
                      options_.dispatch == ExpertDispatch::kEachExpert;
  // Widths of the rows of a token.
  const double gathered =
      width * Real(f.experts_per_token) * options_.expert_imbalance;
  const double arrived = gathers_rows ? all : sent;
  // Without an all-to-all, each GPU sorts the rows of all gathered tokens.
  const double own = gathers_tokens && parallel_.ep == 1 ? all : sent;
  Permute(own);
  ExchangeRows(sent);
  if (gathers_rows) Enter(gathered);
  if (sorted) Permute(arrived);
  // Experts that no token reaches are not run.
  const double used = std::min(local, std::max(routed, 1.0));
  Ffn(routed / used, width, inner, used);
  AddExpertBias(routed);
  if (sorted) Permute(arrived);
  if (gathers_rows) Leave(gathered);
  ExchangeRows(sent);
  Permute(own);
  if (f.latent > 0) Gemm(rows, hidden_, width);
  if (gathers_tokens) {
    shared();
    Leave(hidden_);
  }
  EndBlock(/*has_bias=*/false);
}

}  // namespace pipeloom::emulator
