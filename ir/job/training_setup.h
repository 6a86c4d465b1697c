// How a training framework runs a job: what its kernels fuse, what it hides
// behind compute and what its host costs. Plain data; part of a JobSpec.
//
//                        Megatron-Core   torchtitan    plain PyTorch
//   attention            fused           fused         FlashAttention-2
//   pointwise kernels    fused           fused         eager
//   sequence parallel    yes             yes           no
//   overlap              data            data          data
//   sharding (training)  ZeRO-1          ZeRO-3        none
//
// What each word changes in time and memory: docs/emulator_model.md.
#ifndef PIPELOOM_IR_JOB_TRAINING_SETUP_H_
#define PIPELOOM_IR_JOB_TRAINING_SETUP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/units.h"

namespace pipeloom {

// Whose way a setup begins from; single fields may then differ.
enum class Framework {
  kMegatronCore,  // With TransformerEngine's fused layers.
  kTorchTitan,    // Compiled, fully sharded.
  kPyTorch,       // Eager, replicated (DistributedDataParallel).
};

enum class AttentionKernel {
  kFused,    // Made for the device: what its attention_efficiency is of.
  kFlash2,   // FlashAttention-2: no instructions newer than the A100's.
  kFlash1,   // FlashAttention-1, also as a Triton kernel.
  kUnfused,  // Two products, softmax and dropout, each through memory.
};

enum class CommunicationOverlap {
  kNone,  // Every collective and every send waits.
  kData,  // Gradients and gathered weights run beside compute.
  kAll,   // Tensor-parallel collectives run beside products too.
};

struct TrainingSetup {
  Framework framework = Framework::kMegatronCore;
  AttentionKernel attention = AttentionKernel::kFused;
  // Norms, residuals, activations and dropout as separate kernels.
  bool eager_pointwise = false;
  bool sequence_parallel = true;
  // Products of transformer layers in fp8, from weights and activations that
  // are held in 16 bit. Modules held in fp8 have Precision::kFp8 instead.
  bool fp8_products = false;
  // The attention's core is made again in every backward.
  bool recompute_attention = false;
  CommunicationOverlap overlap = CommunicationOverlap::kData;
  int32_t gradient_bytes = 4;  // An element, when gradients are reduced.
  Duration host_per_kernel{};  // To launch one; a pass lasts this long at least
                               // for each of its kernels.
  double stretch = 1;          // On all that the GPU does.
  bool operator==(const TrainingSetup&) const = default;
};

// The setup that the framework has where nothing else is said.
TrainingSetup SetupOf(Framework framework);

// InvalidArgument names the field, the value and what is allowed.
absl::Status ValidateTrainingSetup(const TrainingSetup& setup);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_TRAINING_SETUP_H_
