// Plain and gated feed-forward parts.
#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

void LayerBuilder::Ffn(double rows, double width, double inner, double groups) {
  const bool gated = layer_.ffn.gated;
  size_t begin = Mark();
  Gemm(rows, (gated ? 2 : 1) * inner, width, groups);
  if (layer_.ffn.experts == 0) BiasGradient(rows, (gated ? 2 : 1) * inner);
  MadeAgain(OperatorGroup::kProjections, begin);
  begin = Mark();
  const double elements = rows * inner * groups;
  if (layer_.ffn.experts > 0) LimitActivation(elements);
  Stream(gated ? MemoryKind::kGatedActivation : MemoryKind::kActivation,
         rows * groups, inner, (gated ? 6 : 4) * elements,
         (gated ? 10 : 6) * elements);
  MadeAgain(layer_.ffn.experts > 0 ? OperatorGroup::kMoeActivations
                                   : OperatorGroup::kActivations,
            begin);
  Gemm(rows, width, inner, groups);
}

void LayerBuilder::FeedForward() {
  NormAndResidual();
  Modulate();
  const size_t begin = Mark();
  EnterProduct(hidden_);
  MadeAgain(OperatorGroup::kProjections, begin);
  Ffn(tokens_, hidden_, share(layer_.ffn.hidden), 1);
  Leave(hidden_);
  EndBlock(/*has_bias=*/true);
}

}  // namespace pipeloom::emulator
