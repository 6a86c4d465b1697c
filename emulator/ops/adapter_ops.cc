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

void LayerBuilder::AdapterExchange(bool enters, double outputs) {
  // The narrow result is whole on every GPU.
  const double narrow = element_bytes_ * tokens_ * Real(options_.adapter_rank);
  CollectiveOp small = Tensor(
      enters ? Collective::kAllGather : Collective::kReduceScatter, narrow);
  small.exposed = true;
  ops_.forward.push_back({{}, {small}});
  small.kind = enters ? Collective::kReduceScatter : Collective::kAllGather;
  Backward(OpStep{{}, {small}});
  if (enters) return;
  // Shares of the width become shares of the sequence.
  CollectiveOp wide = Tensor(Collective::kAllToAll, 2 * outputs);
  wide.exposed = true;
  ops_.forward.push_back({{}, {wide}});
  Backward(OpStep{{}, {wide}});
}

void LayerBuilder::Adapter(double in, double out, bool enters) {
  if (options_.adapter_rank == 0 || !needs_.weights) return;
  // Tensor-parallel GPUs divide the wide sides: by sequence or by width.
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
  if (parallel_.tp > 1) AdapterExchange(enters, outputs * scale);
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
