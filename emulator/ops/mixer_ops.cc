// Token mixers that are linear in the length of a sequence: state spaces
// (Mamba-2) and gated delta nets. Each kernel of their implementations is one
// operator: the products it computes and the tensors it reads and writes once.
//
//   state space   mamba_ssm, mamba_split_conv1d_scan_combined: the backward
//                 computes convolution, chunk states and C B^T again
//   delta net     flash-linear-attention, chunk_gated_delta_rule, with the
//                 inputs that Megatron-Core prepares: the backward computes
//                 transformed keys and values and the states again
//
// Heads are divided by tp. Under context parallelism, an all-to-all turns
// shares of the sequence into shares of the heads, and back.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/numeric.h"
#include "emulator/ops/layer_builder.h"

namespace pipeloom::emulator {
namespace {

constexpr double kFp32Bytes = 4;
// Operations of a multiprocessor in a cycle, as products of small blocks
// alternate with exponents and sums. Both were chosen on measured forwards of
// NVIDIA AIConfigurator (Apache-2.0), docs/evaluation/hybrid.md: of Mamba-2 on
// GB200, and of the gated delta rule on H100, H200, B200, B300, GB200 and
// GB300.
constexpr double kStateSpaceRate = 260;
constexpr double kDeltaNetRate = 500;
// Those of Mamba-2's gradients, which sum over heads and chunks in fp32: chosen
// on trainings of its model of 1.3B on H200 and GB200 (state-spaces/mamba,
// issue 904; docs/evaluation/hybrid.md).
constexpr double kStateSpaceGradientRate = 110;
// The same of a convolution over four tokens of each channel: 2.9 elements a
// cycle, on the same six devices.
constexpr double kConvolutionRate = 2.9 * 8;
// Side of a tile (FixedOp::tiles).
constexpr double kTile = 128;

}  // namespace

size_t LayerBuilder::MixerInput(double columns, int64_t all_columns) {
  NormAndResidual();
  Modulate();
  const size_t begin = Mark();
  shared_entry_ = options_.adapter_rank > 0;
  EnterProduct(hidden_);
  shared_entry_ = false;
  Gemm(tokens_, columns, hidden_);
  Adapter(hidden_, Real(all_columns), /*enters=*/true);
  MadeAgain(OperatorGroup::kProjections, begin);
  return Mark();
}

void LayerBuilder::MixerOutput(double columns, int64_t all_columns) {
  Gemm(tokens_, hidden_, columns);
  Adapter(Real(all_columns), hidden_, /*enters=*/false);
  Leave(hidden_);
  EndBlock(/*has_bias=*/false);
}

void LayerBuilder::ExchangeHeads(const std::vector<double>& widths) {
  if (parallel_.cp == 1) return;
  std::vector<double> elements;
  double all = 0;
  for (const double width : widths) {
    elements.push_back(tokens_ * width);
    all += tokens_ * width;
  }
  for (const OpStep& step : Exchange(elements, element_bytes_)) {
    ops_.forward.push_back(step);
    Backward(step);
  }
  // The order in which attention balances causal work is undone, or made.
  const MemoryOp order{.bytes = 2 * element_bytes_ * all / kPyTorchShare};
  Forward(order);
  Backward(order);
}

void LayerBuilder::Kernels(double flops_per_cycle,
                           const std::vector<FixedOp>& forward,
                           const std::vector<FixedOp>& backward) {
  const auto whole = [&](FixedOp op) {
    op.flops *= tokens_;
    op.bytes *= tokens_;
    if (op.flops_per_cycle <= 0) op.flops_per_cycle = flops_per_cycle;
    return op;
  };
  for (const FixedOp& each : forward) {
    const FixedOp op = whole(each);
    forward_flops_ += op.flops * tp_ * cp_;
    Forward(op);
  }
  // In forward order.
  for (auto op = backward.rbegin(); op != backward.rend(); ++op) {
    Backward(whole(*op));
  }
}

std::array<FixedOp, 2> LayerBuilder::Convolution(double width,
                                                 int64_t kernel) const {
  const double flops = 2 * Real(kernel) * width;
  return {FixedOp{.flops = flops,
                  .bytes = 2 * element_bytes_ * width,
                  .flops_per_cycle = kConvolutionRate},
          FixedOp{.flops = 2 * flops,
                  .bytes = 3 * element_bytes_ * width,
                  .flops_per_cycle = kConvolutionRate}};
}

void LayerBuilder::StateSpace() {
  const StateSpaceSpec& s = layer_.state_space;
  const double heads = share(s.heads);
  const double state = Real(s.state_dim);
  const double inner = heads * Real(s.head_dim);
  const double whole_groups = share(s.groups);
  const size_t begin =
      MixerInput(2 * inner + 2 * whole_groups * state + heads, s.projected());
  // A group whose heads are on several GPUs is on each of them.
  const double groups = std::max(whole_groups, cp_);
  const double shared = groups * state;  // Width of B, and of C.
  ExchangeHeads({inner, inner, shared, shared, heads});

  // Bytes and operations a token. `e`: bytes of an element.
  const double e = element_bytes_;
  const double chunk = Real(s.chunk);
  const double convolved = inner + 2 * shared;
  const double states = inner * state / chunk;  // Elements.
  const double scores = groups * chunk;         // Elements of C B^T.
  const double on_states = 2 * inner * state;   // A product with states.
  const double in_chunk = inner * chunk;        // The lower half of one.
  const double steps = 2 * kFp32Bytes * heads;  // Steps and sums of decays.
  const auto [convolution, convolution_gradients] =
      Convolution(convolved, s.kernel);
  const FixedOp decays{.bytes = e * heads + steps};
  const FixedOp chunk_states{
      .flops = on_states,
      .bytes = e * (inner + shared) + steps + kFp32Bytes * states};
  const FixedOp passing{.bytes = (kFp32Bytes + e) * states};
  const FixedOp products{.flops = 2 * shared * chunk,
                         .bytes = 2 * e * shared + kFp32Bytes * scores};
  // Writes the result with and without the gate.
  const FixedOp scan{
      .flops = on_states + in_chunk,
      .bytes = e * (4 * inner + shared + states) + steps + kFp32Bytes * scores};
  // The gradients of B and of C: from the states, of each chunk in fp32, and
  // from their products.
  const FixedOp shared_gradient{
      .flops = on_states,
      .bytes = e * (inner + shared + states) + kFp32Bytes * shared,
      .flops_per_cycle = kStateSpaceGradientRate};
  const FixedOp product_gradient{.flops = 2 * shared * chunk,
                                 .bytes = kFp32Bytes * scores + 2 * e * shared,
                                 .flops_per_cycle = kStateSpaceGradientRate};
  const FixedOp score_gradient{.flops = in_chunk,
                               .bytes = 2 * e * inner + kFp32Bytes * scores,
                               .flops_per_cycle = kStateSpaceGradientRate};
  Kernels(kStateSpaceRate,
          {convolution, decays, chunk_states, passing, products, scan},
          {convolution,
           decays,
           chunk_states,
           passing,
           products,
           // The gate: its gradient and that of the result.
           {.bytes = 5 * e * inner},
           // The gradients of the states, and their sums backwards.
           {.flops = on_states,
            .bytes = e * (inner + shared) + kFp32Bytes * states,
            .flops_per_cycle = kStateSpaceGradientRate},
           {.bytes = (kFp32Bytes + 3 * e) * states},
           // That of x; those of B, C and of their products; that of the decay.
           {.flops = on_states + in_chunk,
            .bytes = e * (3 * inner + shared + states) + steps +
                     kFp32Bytes * (scores + heads),
            .flops_per_cycle = kStateSpaceGradientRate},
           shared_gradient,
           shared_gradient,
           score_gradient,
           product_gradient,
           product_gradient,
           score_gradient,
           {.bytes = 2 * steps},
           convolution_gradients});
  ExchangeHeads({inner});
  MadeAgain(OperatorGroup::kCoreAttention, begin);
  const size_t norm = Mark();
  const double rows = tokens_ * whole_groups;
  const double elements = tokens_ * inner;
  Stream(MemoryKind::kNorm, rows, inner / whole_groups, 4 * elements,
         6 * elements);
  MadeAgain(OperatorGroup::kNorms, norm);
  MixerOutput(inner, s.mixed());
}

void LayerBuilder::DeltaNet() {
  const DeltaNetSpec& d = layer_.delta_net;
  const double key_heads = share(d.key_heads);
  const double heads = share(d.value_heads);
  const double keys = key_heads * Real(d.key_dim);  // Width of one of Q, K.
  const double values = heads * Real(d.value_dim);
  const size_t begin =
      MixerInput(2 * keys + 2 * values + 2 * heads, d.projected());
  ExchangeHeads({2 * keys + 2 * values + 2 * heads});

  const double e = element_bytes_;
  const double chunk = Real(d.chunk);
  // The last chunk of a sequence is not full.
  const double length =
      whole_tokens_ > 0 ? std::max(shape_.squared_tokens / whole_tokens_, 1.0)
                        : 1;
  const double padded = std::ceil(length / chunk) * chunk / length;
  const double sequences = std::max(whole_tokens_ / length, 1.0);
  const double convolved = 2 * keys + values;
  // Each value head has its own copy of queries and keys.
  const double spread = heads * Real(d.key_dim);
  const double scores = heads * chunk;  // Elements of K K^T.
  const double states = spread * Real(d.value_dim) / chunk;
  const double on_states = 2 * spread * Real(d.value_dim) * padded;
  const double on_keys = 2 * spread * chunk * padded;
  const double on_values = 2 * values * chunk * padded;
  const double tiles = sequences * heads / cp_ * Real(d.key_dim) *
                       Real(d.value_dim) / (kTile * kTile);
  const double gates = 2 * kFp32Bytes * heads;
  // Prepared by PyTorch: copies of queries and keys, of values and the gate;
  // queries and keys for each value head; decays and strengths.
  const bool repeats = d.value_heads > d.key_heads;
  const double copied = 2 * keys + 2 * values + (repeats ? 2 * spread : 0);
  const auto [convolution, convolution_gradients] =
      Convolution(convolved, d.kernel);
  const FixedOp prepared{.bytes = (2 * e * copied + 2 * gates) / kPyTorchShare};
  const FixedOp norms{.bytes = 4 * e * keys};
  const FixedOp decays{.bytes = gates};
  const FixedOp key_products{.flops = on_keys,
                             .bytes = e * spread + gates + kFp32Bytes * scores};
  // Sixteen products of blocks of a quarter of the chunk.
  const FixedOp inverse{.flops = 0.5 * scores * chunk * padded,
                        .bytes = (kFp32Bytes + e) * scores};
  const FixedOp transformed{.flops = on_keys + on_values,
                            .bytes = e * (2 * spread + 2 * values + scores)};
  // States of one chunk after another; the values that each adds to them.
  const FixedOp scan{.flops = 2 * on_states,
                     .bytes = e * (2 * spread + 2 * values + states),
                     .tiles = tiles};
  const FixedOp output{.flops = on_states + on_keys + on_values,
                       .bytes = e * (2 * spread + 2 * values + states)};
  Kernels(
      kDeltaNetRate,
      {convolution, prepared, norms, decays, key_products, inverse, transformed,
       scan, output},
      {transformed,
       scan,
       // The gradient of the added values inside of a chunk, and of states.
       {.flops = on_keys + on_values, .bytes = e * (2 * spread + 2 * values)},
       {.flops = 3 * on_states,
        .bytes = e * (3 * spread + 3 * values + states),
        .tiles = tiles},
       // Those of queries, keys, transformed keys and decays.
       {.flops = 3 * on_states + on_values + 2 * on_keys,
        .bytes = e * (5 * spread + 3 * values + 2 * states)},
       // Those through the transformed keys and values.
       {.flops = 4 * on_keys + 2 * on_values + 4 * scores * chunk * padded,
        .bytes = e * (3 * spread + 3 * values + scores)},
       {.bytes = 3 * e * spread},
       decays,
       prepared,
       {.bytes = 6 * e * keys},
       convolution_gradients});
  MadeAgain(OperatorGroup::kCoreAttention, begin);
  // The norm of each head, and its product with the activated gate.
  const size_t norm = Mark();
  const double elements = tokens_ * values;
  Stream(MemoryKind::kNorm, tokens_ * heads, Real(d.value_dim), 4 * elements,
         6 * elements);
  Stream(MemoryKind::kOther, tokens_, values, 6 * elements / kPyTorchShare,
         10 * elements / kPyTorchShare);
  ExchangeHeads({values});
  MadeAgain(OperatorGroup::kNorms, norm);
  MixerOutput(values, d.mixed());
}

}  // namespace pipeloom::emulator
