// A step instance by instance: for callers that build its tensors and not only
// its costs.
#ifndef PIPELOOM_IR_PLAN_OWNED_INSTANCE_H_
#define PIPELOOM_IR_PLAN_OWNED_INSTANCE_H_

#include <cstdint>
#include <vector>

#include "ir/ids.h"
#include "ir/plan/microbatches.h"

namespace pipeloom {

// An image, clip, audio chunk or, for text and backbones, a whole sample.
struct OwnedInstance {
  int32_t owner = 0;  // Its sample, counted within the microbatch.
  WorkShape shape{};
};

// Indexed by microbatch, then module. Instances are in the order in which
// microbatches are cut into sub-microbatches.
using StepInstances =
    IdVector<MicrobatchId, IdVector<ModuleId, std::vector<OwnedInstance>>>;

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_OWNED_INSTANCE_H_
