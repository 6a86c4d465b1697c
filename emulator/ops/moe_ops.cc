// Mixture of experts: router, dispatch and combine, routed and shared experts.
// Tokens are spread evenly over the experts.
#include <algorithm>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

// Appends sorting rows by their experts, or back.
void LayerBuilder::Permute(double rows) {
  Stream(MemoryKind::kPermutation, rows, hidden_, 4 * rows * hidden_,
         4 * rows * hidden_);
}

// Appends sending rows to the GPUs of their experts, or back.
void LayerBuilder::ExchangeRows(double rows) {
  if (parallel_.ep == 1) return;
  const CollectiveOp exchange{.kind = Collective::kAllToAll,
                              .group = GroupKind::kExpert,
                              .size = parallel_.ep,
                              .bytes = element_bytes_ * rows * hidden_};
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
  // Shared experts work on the gathered tokens; the tokens of the routed ones
  // are kept.
  const size_t begin = Mark();
  Enter(hidden_);
  if (f.shared_experts > 0) MadeAgain(OperatorGroup::kProjections, begin);
  const double routed = tokens_ * Real(f.experts_per_token);
  const double local = Real(CeilDiv(f.experts, parallel_.ep));
  const double inner = share(f.expert_hidden);
  Permute(routed / tp_);
  ExchangeRows(routed / tp_);
  // Experts that no token reaches are not run.
  const double used = std::min(local, std::max(routed, 1.0));
  Ffn(routed / used, inner, used);
  ExchangeRows(routed / tp_);
  Permute(routed / tp_);
  if (f.shared_experts > 0) {
    Ffn(tokens_, inner * Real(f.shared_experts), 1);
  }
  Leave(hidden_);
}

}  // namespace pipeloom::emulator
