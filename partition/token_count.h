// How much work a sample is for each module, by the modules' token rules.
#ifndef PIPELOOM_PARTITION_TOKEN_COUNT_H_
#define PIPELOOM_PARTITION_TOKEN_COUNT_H_

#include "ir/batch_metadata.h"
#include "ir/microbatches.h"
#include "ir/model_spec.h"

namespace pipeloom::partition {

// One shape per module; empty() where the sample has nothing for it. A
// backbone's tokens are the sample's text tokens plus the output tokens of the
// modules that feed it (not as context). A generator without tokens of its own
// is empty. Sources of the rules: workloads/models/*.json. O(media items).
IdVector<ModuleId, WorkShape> SampleWork(const ModelSpec& model,
                                         const SampleMetadata& sample);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_TOKEN_COUNT_H_
