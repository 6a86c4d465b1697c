// The ends of a module: embedding table, patch embedding and projectors, loss.
#include <vector>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

void LayerBuilder::Embedding() {
  const double elements = tokens_ * hidden_;
  MemoryOp look_up{.bytes = 2 * element_bytes_ * elements,
                   .kind = MemoryKind::kEmbedding,
                   .rows = tokens_,
                   .width = hidden_};
  Forward(look_up);
  look_up.bytes = (element_bytes_ + 8) * elements;
  look_up.backward = true;
  const bool frozen = options_.adapter_rank > 0;
  if (layer_.dropout) {
    const double own =
        (2 * element_bytes_ + 1) * elements / tp_ / kPyTorchShare;
    Forward(MemoryOp{.bytes = own});
    if (!frozen) WeightGrad(MemoryOp{.bytes = own, .backward = true});
  }
  if (!frozen) WeightGrad(look_up);
  if (parallel_.tp == 1) return;
  const double bytes = element_bytes_ * elements;
  ops_.forward.push_back({{}, {Tensor(Collective::kReduceScatter, bytes)}});
  if (frozen) return;
  // The gradient of the output is gathered before it is summed.
  const OpStep gather{{}, {Tensor(Collective::kAllGather, bytes)}};
  ops_.weight_grad.push_back(gather);
  ops_.fused.push_back(gather);
}

// The vocabulary is divided by tp. The softmax exchanges two numbers per token,
// which is neglected.
void LayerBuilder::LossHead() {
  const double vocab = share(layer_.vocab);
  NormAndResidual();
  EnterProduct(hidden_);
  Gemm(tokens_, vocab, hidden_);
  Stream(MemoryKind::kLoss, tokens_, vocab, 8 * tokens_ * vocab,
         6 * tokens_ * vocab);
}

// Divided by output and by input width in turn, like a feed-forward network.
void LayerBuilder::Linears() {
  const std::vector<LinearSpec>& linears = layer_.linears;
  size_t begin = Mark();
  EnterProduct(Real(linears.front().in));
  for (size_t i = 0; i < linears.size(); ++i) {
    const bool by_output = i % 2 == 0;
    const double in = by_output ? Real(linears[i].in) : share(linears[i].in);
    const double out = by_output ? share(linears[i].out) : Real(linears[i].out);
    Gemm(tokens_, out, in, 1, i > 0 || needs_.input);
    if (i + 1 < linears.size()) {
      MadeAgain(OperatorGroup::kProjections, begin);
      begin = Mark();
      Stream(MemoryKind::kActivation, tokens_, out, 4 * tokens_ * out,
             6 * tokens_ * out);
      MadeAgain(OperatorGroup::kActivations, begin);
      begin = Mark();
    }
  }
  Leave(Real(linears.back().out));
}

}  // namespace pipeloom::emulator
