// The generation of a GPU, by the peaks of its data sheet.
#ifndef PIPELOOM_IR_JOB_DEVICE_GENERATION_H_
#define PIPELOOM_IR_JOB_DEVICE_GENERATION_H_

#include "ir/job/cluster_spec.h"

namespace pipeloom {

// Whether the device is of the Blackwell generation or later.
inline bool IsBlackwell(const DeviceSpec& device) {
  constexpr double kLeastRate = 2e15;  // FLOP/s of bf16 products.
  return device.bf16.flops_per_second >= kLeastRate;
}

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_DEVICE_GENERATION_H_
