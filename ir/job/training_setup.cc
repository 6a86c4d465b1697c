#include "ir/job/training_setup.h"

#include "absl/strings/str_format.h"

namespace pipeloom {
namespace {

// Host time to launch a kernel in Megatron: of 20, 30 and 40 us the one nearest
// on measured runs that it limits (docs/evaluation/emulator.md, "vTrain on one
// node").
constexpr Duration kBridgeHost{30'000};
// The same of plain PyTorch 2.11 with Python's and autograd's work: passes of
// 1,824 kernels take the host 32 ms, of 4,600 74 ms (Llama 3.2 1B and Qwen3
// 0.6B of workloads/validation/pytorch_h200.csv).
constexpr Duration kPyTorchHost{17'000};

}  // namespace

TrainingSetup SetupOf(Framework framework) {
  TrainingSetup setup;
  setup.framework = framework;
  setup.fp32_shards =
      framework == Framework::kPyTorch || framework == Framework::kTorchTitan;
  setup.pads_vocabulary = framework == Framework::kMegatronCore ||
                          framework == Framework::kMegatronBridge;
  if (framework == Framework::kPyTorch) {
    setup.host_per_kernel = kPyTorchHost;
    setup.fp32_loss = true;
    setup.attention = AttentionKernel::kFlash2;
    setup.eager_pointwise = true;
    setup.sequence_parallel = false;
  }
  if (framework == Framework::kTorchTitan) {
    setup.fp32_loss = true;
    setup.gathered_in_pipeline = true;
  }
  if (framework == Framework::kMegatronBridge) {
    setup.overlap = CommunicationOverlap::kAll;
    setup.gradient_bytes = 2;
    setup.host_per_kernel = kBridgeHost;
    setup.dispatch = ExpertDispatch::kEachGpu;
    // TransformerEngine casts ahead of gathers (pytorch/distributed.py).
    setup.fp8_gathers = true;
  }
  return setup;
}

absl::Status ValidateTrainingSetup(const TrainingSetup& setup) {
  if (setup.gradient_bytes < 1 || setup.gradient_bytes > 8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.gradient_bytes is %d; it must be in [1, 8]",
                        setup.gradient_bytes));
  }
  if (setup.host_per_kernel < kZero || setup.host_per_kernel > Seconds(1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "setup.host_per_kernel_us is %g; it must be in [0, 1e6]",
        ToMicroseconds(setup.host_per_kernel)));
  }
  if (!(setup.stretch >= 0.01 && setup.stretch <= 100)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "setup.stretch is %g; it must be in [0.01, 100]", setup.stretch));
  }
  if (!(setup.expert_imbalance >= 1 && setup.expert_imbalance <= 1000)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.expert_imbalance is %g; it must be in [1, 1000]",
                        setup.expert_imbalance));
  }
  if (setup.weight_bytes < 1 || setup.weight_bytes > 8) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "setup.weight_bytes is %d; it must be in [1, 8]", setup.weight_bytes));
  }
  if (setup.held_weight_bytes < 1 || setup.held_weight_bytes > 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.held_weight_bytes is %d; it must be 1 or 2",
                        setup.held_weight_bytes));
  }
  if (setup.optimizer_bytes < 0 || setup.optimizer_bytes > 16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.optimizer_bytes is %d; it must be in [0, 16]",
                        setup.optimizer_bytes));
  }
  if (setup.bucket_parameters < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.bucket_parameters is %d; it must be at least 0",
                        setup.bucket_parameters));
  }
  if (setup.optimizer_group < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.optimizer_group is %d; it must be at least 0",
                        setup.optimizer_group));
  }
  if (!(setup.straggle >= 0 && setup.straggle <= 1)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "setup.straggle is %g; it must be in [0, 1]", setup.straggle));
  }
  if (!(setup.update_contention >= 0 && setup.update_contention <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.update_contention is %g; it must be in [0, 1]",
                        setup.update_contention));
  }
  if (setup.host_per_step < kZero || setup.host_per_step > Seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("setup.host_per_step_us is %g; it must be in [0, 1e6]",
                        ToMicroseconds(setup.host_per_step)));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
