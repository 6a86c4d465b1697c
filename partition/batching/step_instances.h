// The instances of a packed step's samples.
#ifndef PIPELOOM_PARTITION_BATCHING_STEP_INSTANCES_H_
#define PIPELOOM_PARTITION_BATCHING_STEP_INSTANCES_H_

#include <cstddef>

#include "ir/job/model_spec.h"
#include "ir/plan/owned_instance.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {

// Returns the instances of a replica, with the token counts of AppendInstances.
// REQUIRES: `replica` is one of `packed`. O(instances).
StepInstances InstancesOf(const ModelSpec& model, const PackedStep& packed,
                          size_t replica);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_STEP_INSTANCES_H_
