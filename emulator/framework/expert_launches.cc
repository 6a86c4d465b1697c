#include "emulator/framework/expert_launches.h"

#include <algorithm>
#include <cstdint>

#include "base/numeric.h"
#include "emulator/framework/cast_launches.h"

namespace pipeloom::emulator {
namespace {

// A layer of experts launches in its forward: routing, dispatch and combine,
// permutations. Twice as many in the backward.
constexpr double kExpertKernels = 30;
// For each expert on the GPU, loops of C++ launch two products, which take the
// host 33 us each (TransformerEngine, pull request 3134: 0.267 ms for eight on
// SM100), and prepare and cast their operands: 19 us forward, 33 us backward
// (issue 2897: 1.2 and 2.1 ms for 64 experts on GB200). In kernels of 30 us;
// twice as many in the backward.
constexpr double kKernelUs = 30;
constexpr double kKernelsAnExpert = (2 * 33 + 19) / kKernelUs;
constexpr double kKernelsAScaledExpert = 2 * kScaledCastUs / kKernelUs;
constexpr double kKernelsABias = 2;  // In addition, if an expert adds one.
// To overlap the dispatch with another microbatch, Megatron-Core runs a layer
// in five parts (attention, dispatch, experts, combine, rest), each on its own
// stream with events around it and with a backward of its own, and weight
// gradients of attention and experts later (model_chunk_schedule_plan.py). A
// part takes the host as long as this number of kernels: chosen on Qwen3 235B
// on B300 of 26.02 (workloads/validation/nemo.csv), whose host is the limit.
constexpr double kPartsForward = 5;
constexpr double kPartsBackward = 7;
constexpr double kKernelsAPart = 14;

}  // namespace

EagerLaunches ExpertLaunches(const FfnSpec& ffn, int32_t ep,
                             const TrainingSetup& setup) {
  const auto local = static_cast<double>(CeilDiv(ffn.experts, int64_t{ep}));
  const bool biases = ffn.expert_biases && !setup.fused_experts;
  const bool scaled =
      setup.fp8_products && setup.fp8_recipe == Fp8Recipe::kTensor;
  const double each = kKernelsAnExpert + (scaled ? kKernelsAScaledExpert : 0) +
                      (biases ? kKernelsABias : 0);
  const double us = ToMicroseconds(setup.host_per_kernel);
  const double forward =
      kExpertKernels + each * local * kKernelUs / std::max(kKernelUs, us);
  return {.forward = forward, .backward = 2 * forward};
}

EagerLaunches OverlappedDispatchLaunches() {
  return {.forward = kPartsForward * kKernelsAPart,
          .backward = kPartsBackward * kKernelsAPart};
}

}  // namespace pipeloom::emulator
