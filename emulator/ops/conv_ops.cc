// Convolutional parts: by their layers, or as work known only by its totals.
#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {

// A convolution is a product of positions x out by in * kernel^2 (implicit
// GEMM); norm and activation process its input. Under tensor and context
// parallelism positions are divided into parts of an image, without their
// borders.
void LayerBuilder::Convolutions() {
  for (const ConvolutionSpec& c : layer_.convolutions) {
    const double positions = whole_tokens_ * c.scale * c.scale;
    const double rows = positions / (tp_ * cp_);
    const double in = Real(c.in);
    Stream(MemoryKind::kNorm, rows, in, 8 * rows * in, 12 * rows * in);
    NormAgain(MemoryKind::kNorm, rows, in);
    ops_.again[static_cast<size_t>(OperatorGroup::kActivations)].push_back(
        ops_.again[static_cast<size_t>(OperatorGroup::kNorms)].back());
    Gemm(rows, Real(c.out), Real(c.weights()) / Real(c.out));
    forward_flops_ += 2 * positions * Real(c.weights());
  }
}

void LayerBuilder::FixedWork() {
  const double instances = Real(shape_.instances);
  const double flops = layer_.fixed_flops_per_token * whole_tokens_ +
                       layer_.fixed_flops_per_instance * instances;
  const double kept = layer_.fixed_activation_bytes_per_token * whole_tokens_ +
                      layer_.fixed_activation_bytes_per_instance * instances;
  // Each kept tensor is written once and read once.
  const FixedOp op{.flops = flops / (tp_ * cp_),
                   .bytes = 2 * kept / (tp_ * cp_)};
  Forward(op);
  WeightGrad(op);
  Backward(op);
  forward_flops_ += flops;
}

}  // namespace pipeloom::emulator
