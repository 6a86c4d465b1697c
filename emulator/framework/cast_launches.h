// Kernels that the host launches to cast operands of low-precision products.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_CAST_LAUNCHES_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_CAST_LAUNCHES_H_

#include "emulator/framework/pytorch_traffic.h"
#include "ir/job/model_spec.h"
#include "ir/job/training_setup.h"

namespace pipeloom::emulator {

// Microseconds that a cast with one scale a tensor takes the host in addition:
// it is four launches of 4 us in place of one (largest value, its clearing,
// scale, cast).
inline constexpr double kScaledCastUs = 3 * 4;

// Returns the casts of a transformer layer's products other than those of
// routed experts, in kernels that take the host `setup.host_per_kernel` each.
// TransformerEngine (layernorm_linear.py, linear.py) casts the input of a
// block's first product in the kernel of its norm and that of the second by an
// operator; backward, the gradient of each product's result. An operator takes
// the host as long as one of plain PyTorch. Weights are cast once a step.
// Empty without low-precision products. Pure; O(1).
EagerLaunches CastLaunches(const LayerSpec& layer, const TrainingSetup& setup);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_CAST_LAUNCHES_H_
