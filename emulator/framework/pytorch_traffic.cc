#include "emulator/framework/pytorch_traffic.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "emulator/cost/device_cycles.h"
#include "ir/job/training_setup.h"

namespace pipeloom::emulator {
namespace {

// Bytes an element, counted from the operations that PyTorch runs for one layer
// (all inputs and outputs of each, forward and backward; 16 bits) less those of
// fused kernels (emulator/ops).
//
// An RMS norm in fp32 and its residual sum. Forward: cast (6, strided), square
// (8), mean (4), product with the inverse root (8, strided), cast (6), weight
// (4, strided), sum (6): 42, fused 10. Backward: products with the gradient (6,
// 4 and 8 strided, 12, 8, 12), casts (6 strided, 6), powers (8), sums (6), mean
// (4), sum inside (12) and residual (6): 98, fused 14.
constexpr EagerPasses kNorm{.forward = {14, 18}, .backward = {66, 18}};
// The same without a residual, of queries and keys: 36 and 92, fused 4 and 6.
constexpr EagerPasses kHeadNorm{.forward = {14, 18}, .backward = {68, 18}};
// The rotation of queries and keys by halves: two products (8), a negated half
// (2), a concatenation (4, which counts twice as it runs at half the rate), a
// sum (6): 20, fused kernels 4. Backward: products (8), halves (2 + 6), copies
// (4), sums (12): 32, fused kernels 4.
constexpr EagerPasses kRotation{.forward = {0, 20}, .backward = {0, 28}};
// Keys and values repeated for the heads that share them, and the transposed
// output.
constexpr EagerPasses kHeads{.forward = {9, 0}, .backward = {9, 0}};
// Activation and gate in two kernels.
constexpr EagerPasses kGate{.forward = {4, 0}, .backward = {8, 0}};
// The input gradients of products that share an input are summed: three of the
// attention, two of the feed-forward, 6 bytes a sum.
constexpr EagerPasses kInputSums{.forward = {0, 0}, .backward = {3 * 6, 0}};
// A block of a diffusion transformer with adaptive norms, an element of hidden
// width, all kernels less the fused ones: FLUX.1's double and single blocks
// move 257, 247 and 437, 409 bytes, its norms of queries and keys and its
// rotation in fp32; tensors of images of 1,024 px stay in the second cache.
constexpr EagerPasses kModulated{.forward = {190, 0}, .backward = {340, 0}};
// A loss on logits in 16 bits, and on their fp32 copy (6, strided).
constexpr EagerPasses kLoss{.forward = {2, 0}, .backward = {6, 0}};
constexpr EagerPasses kFp32Loss{.forward = {8, 6}, .backward = {28, 0}};
// Experts as one grouped product for gate and up: activation and gate read its
// halves, rows without an expert are cleared. An element of a visited expert's
// width, and of its row of hidden width, which is gathered, weighted and
// summed.
constexpr EagerPasses kExpertGate{.forward = {0, 12}, .backward = {0, 20}};
constexpr EagerPasses kExpertRow{.forward = {10, 10}, .backward = {18, 10}};

// Rows of experts by indices, an element of a row of a visited expert, counted
// in Megatron-Core 0.6 (moe/token_dispatcher.py, all-gather). Forward: two
// gathers (8), cleared rows (2) that a scatter copies (4) and fills (4),
// products with the probabilities (4), a sum into the tokens' rows (6; cleared
// and copied before, 6 for each token, half as many rows): 31, fused 8.
// Backward: gathers (4 + 4), products with probabilities and for their
// gradients (4 + 8), two sums into cleared rows (8 + 7): 35, fused 8.
constexpr EagerPasses kIndexedRow{.forward = {23, 0}, .backward = {27, 0}};

// Kernels of a Llama-like layer, counted the same way, with its products and
// attention: forward 30 + 7 + 3, backward 56 + 14 + 4. Of norms of queries and
// keys 8 and 17 each.
constexpr EagerLaunches kLayer{.forward = 40, .backward = 74};
constexpr EagerLaunches kHeadNorms{.forward = 16, .backward = 34};
// Router, permutation, grouped products and sums.
constexpr EagerLaunches kExperts{.forward = 35, .backward = 70};
// A layer with layer norms, biases and a plain feed-forward: two norms, six
// products, attention, activation, sums; counted in steps of InternVL3.5 and
// LLaVA 1.5.
constexpr EagerLaunches kPlainLayer{.forward = 17, .backward = 34};
// The same with adaptive norms: a block of attention and feed-forward (FLUX.1's
// double blocks, Wan), and one whose branches share a norm (single blocks).
constexpr EagerLaunches kModulatedLayer{.forward = 92, .backward = 185};
constexpr EagerLaunches kSingleBlock{.forward = 50, .backward = 92};
constexpr int64_t kVectorsOfTwoNorms = 6;
// A window's attention: its kernel; backward, two kernels and a sum.
constexpr EagerLaunches kWindow{.forward = 1, .backward = 3};
// Queries and keys of a rotation that is not fused, in addition to one each
// (rope_utils.py of Megatron-Core): two products, a negated half, two joins and
// a sum, and six for cosines and sines; backward without those.
constexpr EagerLaunches kRotated{.forward = 2 * 11, .backward = 2 * 6};
// In addition, where images and text are in one model (LoongForge's
// qwen2_vl_layer_spec.py and qwen_layer_spec.py): an encoder rotates in fp32,
// which takes two casts. A backbone joins the sections of three axes for
// cosines and sines, and, of several samples, reads both borders of each from
// the GPU.
constexpr EagerLaunches kRotatedIn32{.forward = 2 * 2, .backward = 2 * 2};
constexpr double kSections = 2 * 2;
constexpr double kBorders = 2 * 2;

// Bytes a cycle of a multiprocessor that strided kernels move: 1.8 TB/s on an
// H200, products and sums with broadcast operands and casts to fp32 of 8,192 x
// 4,096 elements (docs/evaluation/pytorch.md).
constexpr double kStridedBytesPerCycle = 7.5;

// A convolution under automatic mixed precision in addition to fused kernels
// (emulator/ops/conv_ops.cc). An element of its input: the group norm's fp32
// copy (6), moments (4) and result (8), activation (8), cast (6) and the change
// of layout that tensor cores need (4); backward, the casts (12), activation
// (12), norm (20) and two changes of layout (8). An element of its output:
// layout (4) and half of a residual sum (3); backward, layout (4) and the bias
// (2).
constexpr EagerPasses kConvolutionIn{.forward = {36 - 8, 0},
                                     .backward = {52 - 12, 0}};
constexpr EagerPasses kConvolutionOut{.forward = {7, 0}, .backward = {6, 0}};
// Its kernels: casts of input and weight, three of the norm, activation, cast,
// two changes of layout, product and bias; backward about twice as many.
constexpr double kKernelsAConvolution = 11;

}  // namespace

EagerPasses PyTorchBytes(const LayerSpec& layer, double tokens,
                         const ParallelLayout& parallel, bool fp32_loss) {
  EagerPasses sum;
  const auto add = [&](const EagerPasses& each, double elements) {
    sum.forward.streamed += each.forward.streamed * elements;
    sum.forward.strided += each.forward.strided * elements;
    sum.backward.streamed += each.backward.streamed * elements;
    sum.backward.strided += each.backward.strided * elements;
  };
  if (layer.kind == LayerKind::kLossHead) {
    add(fp32_loss ? kFp32Loss : kLoss,
        tokens * Real(layer.vocab) / parallel.tp);
    return sum;
  }
  const AttentionSpec& a = layer.attention;
  const double hidden = tokens * Real(layer.hidden);
  if (layer.modulation.vectors > 0) {
    add(kModulated, hidden / parallel.tp);
    return sum;
  }
  const double heads =
      tokens * Real(CeilDiv(a.heads, int64_t{parallel.tp})) * Real(a.head_dim);
  const double keys = tokens * Real(CeilDiv(a.kv_heads, int64_t{parallel.tp})) *
                      Real(a.head_dim);
  add(kNorm, 2 * hidden);
  add(kInputSums, hidden);
  add(kRotation, heads + keys);
  if (a.query_key_norms) add(kHeadNorm, heads + keys);
  add(kHeads, heads);
  const FfnSpec& ffn = layer.ffn;
  if (ffn.experts == 0) {
    add(kGate, tokens * Real(ffn.hidden) / parallel.tp);
    return sum;
  }
  const double visited = tokens * Real(ffn.experts_per_token);
  add(kExpertGate, visited * Real(ffn.expert_hidden) / parallel.tp);
  add(kExpertRow, visited * Real(layer.hidden));
  return sum;
}

EagerPasses ConvolutionBytes(const LayerSpec& layer, double tokens) {
  EagerPasses sum;
  for (const ConvolutionSpec& c : layer.convolutions) {
    const double positions = tokens * c.scale * c.scale;
    const double in = positions * Real(c.in);
    const double out = positions * Real(c.out);
    sum.forward.streamed += kConvolutionIn.forward.streamed * in +
                            kConvolutionOut.forward.streamed * out;
    sum.backward.streamed += kConvolutionIn.backward.streamed * in +
                             kConvolutionOut.backward.streamed * out;
  }
  return sum;
}

EagerPasses IndexedRowBytes(const LayerSpec& layer, double tokens,
                            const ParallelLayout& parallel) {
  const FfnSpec& ffn = layer.ffn;
  // GPUs that share an expert have all of its rows.
  const double elements = tokens * Real(ffn.experts_per_token) *
                          Real(ffn.row_width(layer.hidden)) /
                          (parallel.expert_tp == 1 ? parallel.tp : 1);
  return {.forward = {.streamed = kIndexedRow.forward.streamed * elements},
          .backward = {.streamed = kIndexedRow.backward.streamed * elements}};
}

EagerLaunches PyTorchLaunches(const LayerSpec& layer, double tokens) {
  EagerLaunches sum = kPlainLayer;
  const auto add = [&](const EagerLaunches& each, double times) {
    sum.forward += each.forward * times;
    sum.backward += each.backward * times;
  };
  const AttentionSpec& a = layer.attention;
  if (layer.modulation.vectors > 0) {
    sum = layer.modulation.vectors < kVectorsOfTwoNorms ? kSingleBlock
                                                        : kModulatedLayer;
  } else if (layer.ffn.gated && layer.cross_attention.heads == 0) {
    sum = kLayer;
    if (a.query_key_norms) add(kHeadNorms, 1);
  }
  if (layer.ffn.experts > 0) add(kExperts, 1);
  if (a.kind == AttentionKind::kWindow && a.window > 0) {
    add(kWindow, std::ceil(tokens / Real(a.window)));
  }
  return sum;
}

EagerLaunches ConvolutionLaunches(const LayerSpec& layer) {
  const double kernels = kKernelsAConvolution * Real(layer.convolutions.size());
  return {.forward = kernels, .backward = 2 * kernels};
}

EagerLaunches RotationLaunches(const AttentionSpec& attention, double packed,
                               Duration per_kernel) {
  EagerLaunches sample = kRotated;
  double times = 1;
  if (packed > 0 && attention.kind == AttentionKind::kCausal) {
    sample.forward += kSections + (packed > 1 ? kBorders : 0);
    times = std::max(1.0, packed);
  } else if (packed > 0) {
    sample.forward += kRotatedIn32.forward;
    sample.backward += kRotatedIn32.backward;
  }
  const Duration one = SetupOf(Framework::kPyTorch).host_per_kernel;
  if (per_kernel > one) times *= ToSeconds(one) / ToSeconds(per_kernel);
  return {.forward = sample.forward * times,
          .backward = sample.backward * times};
}

double StridedRate(const DeviceSpec& device) {
  return std::min(
      device.memory_bandwidth.bytes_per_second * device.memory_efficiency,
      kStridedBytesPerCycle * CyclesPerSecond(device));
}

}  // namespace pipeloom::emulator
