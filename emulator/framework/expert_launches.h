// Kernels that the host launches for experts.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_EXPERT_LAUNCHES_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_EXPERT_LAUNCHES_H_

#include "emulator/framework/pytorch_traffic.h"
#include "ir/job/model_spec.h"
#include "ir/job/training_setup.h"

namespace pipeloom::emulator {

// Returns the kernels of the routed experts of a layer, of which `ep` GPUs
// share the experts, in kernels that take the host `setup.host_per_kernel`
// each. An expert's own launches are loops of C++, which no Python around them
// makes longer: they take a host at most their measured time. Pure; O(1).
EagerLaunches ExpertLaunches(const FfnSpec& ffn, int32_t ep,
                             const TrainingSetup& setup);

// Returns what overlapping the dispatch with another microbatch adds to them.
EagerLaunches OverlappedDispatchLaunches();

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_EXPERT_LAUNCHES_H_
