// The kernels of a layer's passes that are not among its operators
// (FrameworkPrices::Traffic).
#include <algorithm>

#include "base/numeric.h"
#include "emulator/cost/device_cycles.h"
#include "emulator/framework/framework_price.h"
#include "emulator/framework/layer_launches.h"
#include "emulator/framework/pytorch_traffic.h"
#include "emulator/ops/layer_builder.h"
#include "emulator/ops/layer_tokens.h"

namespace pipeloom::emulator {
namespace {

using KernelBytes = KernelTraffic::Bytes;

// Bytes per element in addition to those of fused kernels (emulator/ops), if
// norm, bias, dropout and residual are separate kernels.
constexpr KernelBytes kEager{.forward = 8, .backward = 16};
// The same of the kernels that XLA makes, half of them on a tensor-parallel
// GPU's part of a layer: 420 bytes are the mean of what GPT of 126M and 5B,
// Llama 2 7B and ViT-G/14 ask for by themselves (docs/evaluation/unseen.md), a
// third of them forward.
constexpr KernelBytes kXla{.forward = 140, .backward = 280};
// Bytes per logit: cast to fp32, maximum, difference, exponent, sum, gather.
constexpr KernelBytes kEagerLogits{.forward = 16, .backward = 6};

// A loss on an fp32 copy of the logits.
constexpr KernelBytes kEagerLoss{.forward = 14, .backward = 28};
// The same of Megatron-Core without its fused loss (tensor_parallel/
// cross_entropy.py): its maximum (4), exponents (8) and their sum (4), less the
// 8 of a fused loss; backward, the cast to 16 bits, less 6. At the rate of
// strided kernels: the fp32 copy (6), the difference (8) and the softmax (8),
// whose divisor is broadcast; backward, the scaled gradient (8).
constexpr KernelBytes kFp32Loss{.forward = 8, .backward = 0};
constexpr KernelBytes kFp32LossStrided{.forward = 22, .backward = 8};

// Norm and residual of a block, bytes per element (NormAndResidual).
constexpr KernelBytes kNorm{.forward = 10, .backward = 14};
// The same of its modulation (Modulate).
constexpr KernelBytes kModulated{.forward = 8, .backward = 12};

// Layers without TransformerEngine add the bias of queries, keys and values in
// a kernel of its own (Megatron-LM, tensor_parallel/layers.py): bytes an
// element.
constexpr double kBiasSum = 2 + 2;

// A rotation of queries and keys that also multiplies by a factor runs as
// operators of PyTorch in Megatron-Core (rope_utils.py: a factor is not
// supported by TransformerEngine's kernel). Bytes an element in addition to the
// 4 of that kernel. Forward: half is negated (2), joined with the other half
// (4), two products (8), their sum (6), joined with the part that is not
// rotated, which is empty (4). Backward: two products (8), half negated (2),
// halves joined (4), summed (6); zeros for the empty part (2), summed (6).
constexpr KernelBytes kScaledRotary{.forward = 24 - 4, .backward = 28 - 4};

// Where one kernel runs a product of experts and their activation (cuDNN's, in
// TransformerEngine's fused operations for MXFP8 on Blackwell): bytes that
// kernels of their own move in addition, an element of the experts' width.
// Forward: activation (6) and cast (4) less their results (2). Backward: the
// gradient (2), activation (10) and cast (8) less gate, input and results (8).
constexpr KernelBytes kFusedActivation{.forward = 8, .backward = 12};

double HeadsOnGpu(const LayerSpec& layer, const ParallelLayout& parallel) {
  return Real(CeilDiv(layer.attention.heads, int64_t{parallel.tp}));
}

double QueryKeyValueWidth(const LayerSpec& layer,
                          const ParallelLayout& parallel) {
  const AttentionSpec& a = layer.attention;
  return HeadsOnGpu(layer, parallel) * Real(a.head_dim) +
         Real(CeilDiv(a.kv_heads, int64_t{parallel.tp})) *
             Real(a.head_dim + a.value_width());
}

}  // namespace

KernelTraffic FrameworkPrices::ConvolutionTraffic() const {
  KernelTraffic traffic;
  if (!setup_.eager_pointwise || setup_.framework != Framework::kPyTorch) {
    return traffic;
  }
  const double tokens = Real(LayerTokens(layer_, shape_)) /
                        Real(int64_t{parallel_.tp} * parallel_.cp);
  const EagerPasses bytes = ConvolutionBytes(layer_, tokens);
  traffic.forward = Memory(bytes.forward.streamed);
  traffic.backward = Memory(bytes.backward.streamed);
  if (Graphs() == CudaGraphs::kIteration) return traffic;
  const EagerLaunches launches = ConvolutionLaunches(layer_);
  traffic.forward_kernels = launches.forward;
  traffic.backward_kernels = launches.backward;
  return traffic;
}

double FrameworkPrices::Tokens() const {
  return Real(LayerTokens(layer_, shape_)) / parallel_.cp;
}

void FrameworkPrices::AddStreamed(const KernelBytes& bytes, double elements,
                                  KernelTraffic* traffic) const {
  traffic->forward += Memory(bytes.forward * elements);
  traffic->backward += Memory(bytes.backward * elements);
}

void FrameworkPrices::AddStrided(const KernelBytes& bytes, double elements,
                                 KernelTraffic* traffic) const {
  const double seconds = elements / StridedRate(device_);
  traffic->forward += Seconds(bytes.forward * seconds);
  traffic->backward += Seconds(bytes.backward * seconds);
}

void FrameworkPrices::AddProjections(KernelTraffic* traffic) const {
  if (layer_.biases && setup_.attention != AttentionKernel::kFused) {
    AddStreamed({.forward = kBiasSum},
                Tokens() * QueryKeyValueWidth(layer_, parallel_), traffic);
  }
  if (ScalesRotaryApart(layer_, setup_)) {
    const AttentionSpec& a = layer_.attention;
    const double heads = HeadsOnGpu(layer_, parallel_) +
                         Real(CeilDiv(a.kv_heads, int64_t{parallel_.tp}));
    AddStreamed(kScaledRotary,
                Tokens() * Real(a.head_dim) * heads / kPyTorchShare, traffic);
  }
}

void FrameworkPrices::SubtractFusedExperts(KernelTraffic* traffic) const {
  if (layer_.ffn.experts == 0 || !layer_.ffn.gated || !setup_.fused_experts ||
      !setup_.fp8_products || setup_.fp8_recipe != Fp8Recipe::kBlocks ||
      !IsBlackwell(device_)) {
    return;
  }
  const double elements = Tokens() / parallel_.tp *
                          Real(layer_.ffn.experts_per_token) *
                          Real(layer_.ffn.expert_hidden);
  traffic->forward -= Memory(kFusedActivation.forward * elements);
  traffic->backward -= Memory(kFusedActivation.backward * elements);
}

void FrameworkPrices::AddWholeNorms(KernelTraffic* traffic) const {
  if (setup_.sequence_parallel || parallel_.tp == 1) return;
  // Norms and residuals of both blocks work on the tokens of the other GPUs
  // too.
  const double whole =
      Tokens() * Real(layer_.hidden) * (1 - 1.0 / parallel_.tp);
  for (int block = 0; block < std::min(BlocksOf(layer_), 2); ++block) {
    AddStreamed(kNorm, whole, traffic);
    if (layer_.modulation.vectors > 0) AddStreamed(kModulated, whole, traffic);
  }
}

void FrameworkPrices::AddPointwise(KernelTraffic* traffic) const {
  const bool transformer = layer_.kind == LayerKind::kTransformer;
  const double elements = Tokens() * Real(layer_.hidden);
  if (setup_.xla_pointwise && transformer) {
    AddStreamed(kXla, elements * (1 + 1.0 / parallel_.tp) / 2, traffic);
    return;
  }
  if (setup_.eager_pointwise && setup_.framework == Framework::kPyTorch &&
      (!transformer || layer_.modulation.vectors > 0 ||
       (layer_.ffn.gated && layer_.cross_attention.heads == 0))) {
    const EagerPasses bytes =
        PyTorchBytes(layer_, Tokens(), parallel_, setup_.fp32_loss);
    AddStreamed({bytes.forward.streamed, bytes.backward.streamed}, 1, traffic);
    AddStrided({bytes.forward.strided, bytes.backward.strided}, 1, traffic);
    return;
  }
  if (!setup_.eager_pointwise && !setup_.xla_pointwise) return;
  if (!transformer) {
    if (!setup_.fp32_loss) {
      AddStreamed(kEagerLogits, Tokens() * Real(layer_.vocab) / parallel_.tp,
                  traffic);
    }
    return;
  }
  AddStreamed(kEager, elements / (setup_.sequence_parallel ? parallel_.tp : 1),
              traffic);
  if (layer_.ffn.experts > 0 && parallel_.ep == 1) {
    const EagerPasses rows = IndexedRowBytes(layer_, Tokens(), parallel_);
    AddStreamed({rows.forward.streamed / kPyTorchShare,
                 rows.backward.streamed / kPyTorchShare},
                1, traffic);
  }
}

void FrameworkPrices::AddFp32Loss(KernelTraffic* traffic) const {
  if (!setup_.fp32_loss || setup_.framework == Framework::kPyTorch) return;
  const double logits = Tokens() * Real(layer_.vocab) / parallel_.tp;
  if (setup_.framework == Framework::kTorchTitan) {
    AddStreamed(kEagerLoss, logits, traffic);
    return;
  }
  AddStreamed(kFp32Loss, logits, traffic);
  AddStrided(kFp32LossStrided, logits, traffic);
}

KernelTraffic FrameworkPrices::Traffic(const LayerOps& ops) const {
  if (layer_.kind == LayerKind::kConvolutions) return ConvolutionTraffic();
  const bool transformer = layer_.kind == LayerKind::kTransformer;
  KernelTraffic traffic;
  if (!transformer && layer_.kind != LayerKind::kLossHead) return traffic;
  if (transformer) {
    AddProjections(&traffic);
    SubtractFusedExperts(&traffic);
    AddWholeNorms(&traffic);
  }
  AddPointwise(&traffic);
  if (!transformer) AddFp32Loss(&traffic);
  int64_t products = 0;
  for (const OpStep& step : ops.weight_grad) {
    products += static_cast<int64_t>(step.compute.size());
  }
  const PassLaunches launches =
      LayerLaunches(layer_, shape_, parallel_, setup_, Graphs(),
                    microbatches_.packed, products);
  traffic.forward_kernels = launches.forward;
  traffic.backward_kernels = launches.backward;
  traffic.weight_grad_kernels = launches.weight_grad;
  return traffic;
}

}  // namespace pipeloom::emulator
