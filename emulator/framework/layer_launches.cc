#include "emulator/framework/layer_launches.h"

#include <algorithm>

#include "base/numeric.h"
#include "emulator/framework/cast_launches.h"
#include "emulator/framework/expert_launches.h"
#include "emulator/framework/score_kernels.h"
#include "emulator/ops/layer_builder.h"
#include "emulator/ops/layer_tokens.h"

namespace pipeloom::emulator {
namespace {

// Kernels that a layer launches without fusion; a collective takes the host as
// long as two.
constexpr double kKernelsForward = 25;
constexpr double kKernelsBackward = 50;
constexpr double kKernelsACollective = 2;
// A further step of a ring of keys and values launches, forward: a transfer,
// copies of halves, attention and two corrections; backward: a transfer,
// copies, attention and three sums (TransformerEngine, context_parallel.py).
constexpr double kRingStepForward = 7;
constexpr double kRingStepBackward = 9;
// An all-to-all of queries, keys, values and outputs launches two copies and an
// exchange for each, and back.
constexpr double kAllToAllKernels = 12;
// Kernels of a token mixer in place of attention's six, counted in the code of
// Megatron-Core, mamba_ssm and flash-linear-attention. State space, forward:
// the six of the scan, norm, copies of its small parameters; backward: those
// six again, fourteen gradients and their casts and sums. Delta net, forward:
// convolution, norm, gates, copies of queries, keys, values and gate, six of
// the chunks, norm and gate.
struct MixerKernels {
  double forward = 0;
  double backward = 0;
};
constexpr MixerKernels kStateSpaceKernels{.forward = 8, .backward = 20};
constexpr MixerKernels kDeltaNetKernels{.forward = 14, .backward = 24};
// Replaying a layer's graph and copying its input take the host as long as this
// number of kernels: chosen on the fit rows of workloads/validation/mlperf.csv.
constexpr double kKernelsAReplay = 20;

EagerLaunches& operator+=(EagerLaunches& a, const EagerLaunches& b) {
  a.forward += b.forward;
  a.backward += b.backward;
  return a;
}

// A layer of one block launches half as many.
double BlockShare(const LayerSpec& layer) {
  return BlocksOf(layer) < 2 ? 0.5 : 1;
}

// Kernels of a transformer layer by itself.
EagerLaunches OwnLaunches(const LayerSpec& layer, const WorkShape& shape,
                          const ParallelLayout& parallel,
                          const TrainingSetup& setup, bool packed) {
  if (setup.eager_pointwise && setup.framework == Framework::kPyTorch) {
    return PyTorchLaunches(layer,
                           Real(LayerTokens(layer, shape)) / parallel.cp);
  }
  const MixerKernels mixer = layer.state_space.heads > 0 ? kStateSpaceKernels
                             : layer.delta_net.value_heads > 0
                                 ? kDeltaNetKernels
                                 : MixerKernels{};
  EagerLaunches sum{
      .forward = BlockShare(layer) * kKernelsForward + mixer.forward,
      .backward = BlockShare(layer) * kKernelsBackward + mixer.backward};
  if (ScalesRotaryApart(layer, setup)) {
    sum += RotationLaunches(layer.attention, packed ? shape.sequences : 0,
                            setup.host_per_kernel);
  }
  sum += CastLaunches(layer, setup);
  if (layer.ffn.experts > 0) {
    sum += ExpertLaunches(layer.ffn, parallel.ep, setup);
    if (setup.overlap_dispatch && parallel.ep > 1) {
      sum += OverlappedDispatchLaunches();
    }
  }
  return sum;
}

// Kernels by which GPUs of a context-parallel group exchange keys and values.
EagerLaunches ContextLaunches(const LayerSpec& layer,
                              const ParallelLayout& parallel) {
  if (parallel.cp == 1 || !HasMixer(layer)) return {};
  if (layer.attention.kind == AttentionKind::kNone ||
      parallel.context == ContextParallelism::kAllToAll) {
    return {kAllToAllKernels, kAllToAllKernels};
  }
  if (parallel.context != ContextParallelism::kRing) return {};
  return {kRingStepForward * (parallel.cp - 1),
          kRingStepBackward * (parallel.cp - 1)};
}

}  // namespace

bool ScalesRotaryApart(const LayerSpec& layer, const TrainingSetup& setup) {
  return layer.kind == LayerKind::kTransformer &&
         layer.attention.scaled_rotary &&
         (setup.framework == Framework::kMegatronCore ||
          setup.framework == Framework::kMegatronBridge);
}

PassLaunches LayerLaunches(const LayerSpec& layer, const WorkShape& shape,
                           const ParallelLayout& parallel,
                           const TrainingSetup& setup, CudaGraphs graphs,
                           bool packed, int64_t weight_grad_products) {
  if (graphs == CudaGraphs::kIteration) return {};
  const auto with_products = [&](const EagerLaunches& sum) -> PassLaunches {
    return {sum.forward, sum.backward,
            std::min(Real(weight_grad_products), sum.backward)};
  };
  if (layer.kind != LayerKind::kTransformer) {
    return with_products({kKernelsForward, kKernelsBackward});
  }
  EagerLaunches sum;
  if (graphs == CudaGraphs::kNone) {
    sum = OwnLaunches(layer, shape, parallel, setup, packed);
    sum += ContextLaunches(layer, parallel);
  } else if (layer.ffn.experts > 0) {
    // Graphs of layers leave out the experts.
    sum = ExpertLaunches(layer.ffn, parallel.ep, setup);
  } else {
    return {kKernelsAReplay, kKernelsAReplay, 0};
  }
  if (setup.attention == AttentionKernel::kUnfused &&
      layer.attention.kind != AttentionKind::kNone) {
    const ScoreKernels kernels = ScoreKernelsOf(layer, shape, parallel, setup);
    sum += {kernels.more_forward_kernels, kernels.more_backward_kernels};
  }
  if (parallel.tp > 1) {
    const double collectives = 2 * BlockShare(layer) * kKernelsACollective;
    sum += {collectives, collectives};
  }
  return with_products(sum);
}

}  // namespace pipeloom::emulator
