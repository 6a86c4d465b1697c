// How a training framework runs a job: what its kernels fuse, what it hides
// behind compute and what its host costs. Plain data, given by whoever
// describes a measured run (docs/validation.md says what each word means).
#ifndef PIPELOOM_IR_TRAINING_SETUP_H_
#define PIPELOOM_IR_TRAINING_SETUP_H_

#include <cstdint>

#include "base/units.h"

namespace pipeloom {

enum class AttentionKernel {
  kFused,    // Made for the device: what its attention_efficiency is of.
  kFlash2,   // FlashAttention-2: no instructions newer than the A100's.
  kFlash1,   // FlashAttention-1, also as a Triton kernel.
  kUnfused,  // Two products, softmax and dropout, each through memory.
};

enum class WeightSharding {
  kNone,   // Every replica holds and updates everything.
  kZero1,  // The optimizer's state is divided over the replicas.
  kFull,   // Weights too, gathered layer by layer (FSDP, ZeRO-3).
};

enum class CommunicationOverlap {
  kNone,  // Every collective waits.
  kData,  // Gradients and gathered weights run beside compute.
  kAll,   // Tensor-parallel collectives run beside products too.
};

enum class Recomputation { kNone, kSelective, kFull };

struct TrainingSetup {
  AttentionKernel attention = AttentionKernel::kFused;
  // Norms, residuals, activations and dropout as separate kernels.
  bool eager_pointwise = false;
  bool sequence_parallel = true;
  bool fp8 = false;  // Products of transformer layers.
  WeightSharding sharding = WeightSharding::kZero1;
  CommunicationOverlap overlap = CommunicationOverlap::kData;
  Recomputation recomputation = Recomputation::kNone;
  int32_t gradient_bytes = 4;  // An element, when gradients are reduced.
  Duration host_per_kernel{};  // To launch one; a pass lasts this long at least
                               // for each of its kernels.
  double stretch = 1;          // On all that the GPU does; the fitted scalar.
  bool operator==(const TrainingSetup&) const = default;
};

}  // namespace pipeloom

#endif  // PIPELOOM_IR_TRAINING_SETUP_H_
