// Low-rank adapters of a projection.
#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {
namespace {

// Bytes an element that separate kernels move. Input: dropout reads, writes and
// keeps a mask of a byte; the product with the narrow matrix reads. Output: the
// product with the wide matrix writes; scaling reads and writes; the sum with
// the projection's output reads both and writes.
constexpr double kDropout = 5;
constexpr double kOneWay = 2;
constexpr double kScale = 4;
constexpr double kSum = 6;

}  // namespace

void LayerBuilder::Adapter(double in, double out) {
  if (options_.adapter_rank == 0 || !needs_.weights) return;
  // Of the wide sides, tensor-parallel GPUs have shares: of the sequence or of
  // the width.
  const double inputs = tokens_ * in / tp_;
  const double outputs = tokens_ * out / tp_;
  const double scale = element_bytes_ / 2;
  const auto kernel = [&](double bytes) {
    return MemoryOp{.bytes = bytes * scale, .kind = MemoryKind::kOther};
  };
  for (const double bytes :
       {kDropout * inputs, kOneWay * inputs, kOneWay * outputs,
        kScale * outputs, kSum * outputs}) {
    Forward(kernel(bytes));
  }
  // In forward order.
  for (const double bytes :
       {kSum * inputs, kDropout * inputs, kOneWay * inputs}) {
    MemoryOp op = kernel(bytes);
    op.backward = true;
    Backward(op);
  }
  MemoryOp narrow = kernel(kOneWay * inputs);
  MemoryOp wide = kernel(kOneWay * outputs);
  narrow.backward = wide.backward = true;
  WeightGrad(narrow);
  WeightGrad(wide);
  for (const double bytes : {kOneWay * outputs, kScale * outputs}) {
    MemoryOp op = kernel(bytes);
    op.backward = true;
    Backward(op);
  }
}

}  // namespace pipeloom::emulator
