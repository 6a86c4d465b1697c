// Training with libtorch behind the runtime's Device interface. No torch in
// here: what is behind it is a shared module of its own (LoadTorchModule), so
// that a program pays for libtorch only when it trains.
//
// A trainer keeps weights, gradients and optimizer state of all ranks from step
// to step. Ranks are threads of one process, each of which touches its own
// stages only. Initial weights follow from the seed and a parameter's name, so
// they are the same for every partition.
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

// By parameter: "backbone.3.query". Row-major.
using TorchValues = std::map<std::string, std::vector<double>>;

class TorchTrainer {
 public:
  virtual ~TorchTrainer() = default;

  // Makes ready for one step and gives the plan to run: `plan` with the
  // device's tensor sizes. An empty `memory` means: backwards whose task
  // `recomputes` run each layer of their stage again. Gradients are zero
  // afterwards.
  virtual absl::StatusOr<ExecutionPlan> BeginStep(
      const ExecutionPlan& plan, const TorchWork& work,
      const MemoryPolicy& memory) = 0;
  // A DeviceFactory for the plan of the last BeginStep. The device lives
  // shorter than the trainer.
  virtual std::unique_ptr<Device> MakeDevice(const DeviceContext& context) = 0;

  // Of the last step and this trainer's ranks; after they have ended.
  virtual double Loss() const = 0;
  virtual TorchSpent Spent() const = 0;
  virtual TorchValues Weights() const = 0;
  virtual TorchValues Gradients() const = 0;  // Of trained parameters.
  virtual int64_t NumParameters() const = 0;  // Of all ranks.
};

// As CheckTorchModel. FailedPrecondition: no CUDA device.
absl::StatusOr<std::unique_ptr<TorchTrainer>> MakeTorchTrainer(
    const TorchSetup& setup);

// The shared module's only entry point.
using TorchEntryPoint =
    absl::StatusOr<std::unique_ptr<TorchTrainer>> (*)(const TorchSetup& setup);
inline constexpr char kTorchEntryPoint[] = "PipeloomMakeTorchTrainer";

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_TORCH_TORCH_TRAINER_H_
