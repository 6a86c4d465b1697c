// Mixture of experts: router, dispatch and combine, routed and shared experts.
// Tokens are spread over the experts evenly, except that those of the fullest
// GPU are `expert_imbalance` times as many.
#include <algorithm>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

// Appends sorting rows by their experts, or back.
void LayerBuilder::Permute(double rows) {
  Stream(MemoryKind::kPermutation, rows, hidden_, 4 * rows * hidden_,
         4 * rows * hidden_);
}

// Appends sending the tokens of `rows` rows, one for each of their experts, to
// the GPUs of those experts, or back.
void LayerBuilder::ExchangeRows(double rows) {
  if (parallel_.ep == 1) return;
  CollectiveOp exchange{
      .kind = Collective::kAllToAll,
      .group = GroupKind::kExpert,
      .size = parallel_.ep,
      .bytes = element_bytes_ * rows * hidden_ * options_.expert_imbalance};
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
  // Experts that tensor parallelism divides work on the gathered tokens, as
  // shared experts do; the tokens of the routed ones are kept.
  const bool divided = parallel_.expert_tp != 1;
  const auto shared = [&] {
    if (f.shared_experts > 0) {
      Ffn(tokens_, share(f.expert_hidden) * Real(f.shared_experts), 1);
    }
  };
  const size_t begin = Mark();
  if (divided || f.shared_experts > 0) Enter(hidden_);
  if (f.shared_experts > 0) MadeAgain(OperatorGroup::kProjections, begin);
  if (!divided) {
    shared();
    if (f.shared_experts > 0) Leave(hidden_);
  }
  const double all = tokens_ * Real(f.experts_per_token);
  const double sent = all / tp_;
  // Rows that the experts of a GPU work on.
  const double routed = (divided ? all : sent) * options_.expert_imbalance;
  const double local = Real(CeilDiv(f.experts, int64_t{parallel_.ep}));
  const double inner = divided ? share(f.expert_hidden) : Real(f.expert_hidden);
  Permute(sent);
  ExchangeRows(sent);
  // Experts that no token reaches are not run.
  const double used = std::min(local, std::max(routed, 1.0));
  Ffn(routed / used, inner, used);
  ExchangeRows(sent);
  Permute(sent);
  if (divided) {
    shared();
    Leave(hidden_);
  }
}

}  // namespace pipeloom::emulator
