// Training with libtorch behind the runtime's Device interface. This header
// needs no libtorch: the implementation is a shared module (LoadTorchModule),
// so that a program loads libtorch only when it trains.
//
// A trainer keeps weights, gradients and optimizer state from step to step. Its
// ranks are threads of one process, each of which touches its own stages only,
// or it is one rank of a run of processes (TorchSetup::only_rank). Initial
// weights follow from the seed and a parameter's name, so they are the same for
// every partition.
//
// The loss of a step is the sum over modules of the mean over their rows of the
// cross-entropy (loss heads) or squared error (a module that feeds no other and
// ends otherwise), with seeded labels. Each sub-microbatch divides its sum by
// the rows of the whole step, so gradients are those of the batch as one.
#ifndef PIPELOOM_RUNTIME_TORCH_TORCH_TRAINER_H_
#define PIPELOOM_RUNTIME_TORCH_TORCH_TRAINER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job/model_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/partition.h"
#include "runtime/device.h"
#include "runtime/torch/torch_setup.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::runtime {

// Tensors in row-major order, indexed by parameter, such as "backbone.3.query".
using TorchValues = std::map<std::string, std::vector<double>>;

// See the top of the file.
class TorchTrainer {
 public:
  virtual ~TorchTrainer() = default;

  // Prepares one step, sets all gradients to zero and returns the plan to run:
  // `plan` with the device's tensor sizes. With an empty `memory`, backwards
  // whose task `recomputes` run each layer of their stage again.
  virtual absl::StatusOr<ExecutionPlan> BeginStep(
      const ExecutionPlan& plan, const TorchWork& work,
      const MemoryPolicy& memory) = 0;
  // Makes a device for the plan of the last BeginStep (a DeviceFactory).
  // REQUIRES: the trainer outlives the device.
  virtual std::unique_ptr<Device> MakeDevice(const DeviceContext& context) = 0;

  // Return results of the last step for this trainer's ranks. REQUIRES: the
  // ranks have ended.
  virtual double Loss() const = 0;
  virtual TorchSpent Spent() const = 0;
  virtual TorchValues Weights() const = 0;
  virtual TorchValues Gradients() const = 0;  // Trained parameters only.
  virtual int64_t NumParameters() const = 0;  // Those of all ranks.
};

// Makes a trainer. Errors are those of CheckTorchModel and ValidatePartition;
// InvalidArgument: `frozen` is not of the model's modules. FailedPrecondition:
// there is no CUDA device.
absl::StatusOr<std::unique_ptr<TorchTrainer>> MakeTorchTrainer(
    const TorchSetup& setup);

// The type and name of the shared module's only entry point.
using TorchEntryPoint =
    absl::StatusOr<std::unique_ptr<TorchTrainer>> (*)(const TorchSetup& setup);
inline constexpr char kTorchEntryPoint[] = "PipeloomMakeTorchTrainer";

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_TRAINER_H_
