// Gradients in plain PyTorch. After the update they are freed
// (optimizer.zero_grad, set_to_none). In the next step the first backward
// allocates them again, layer by layer. Other frameworks hold them during the
// whole step.
#ifndef PIPELOOM_EMULATOR_STAGE_MADE_GRADIENTS_H_
#define PIPELOOM_EMULATOR_STAGE_MADE_GRADIENTS_H_

#include <cstdint>

#include "base/units.h"
#include "ir/ids.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"

namespace pipeloom::emulator {

// Returns whether the replicas reduce gradients in buckets that are held in
// addition to them, as DistributedDataParallel does (torch/csrc/distributed/
// c10d/reducer.cpp; unless gradient_as_bucket_view).
bool HasBuckets(const JobSpec& job);

// Returns whether a step of one microbatch begins without gradients in this
// job: on one pipeline rank, without sharding.
bool MakesGradients(const JobSpec& job);

// Bytes that the backward of one layer adds.
struct MadeGradients {
  Bytes held{};  // Until the step ends.
  // For a moment. A table that embedding and loss head share has a gradient by
  // each; the embedding's and the sum of both are tensors of their own.
  Bytes scratch{};
  bool operator==(const MadeGradients&) const = default;
};
// Returns those of a trained layer; `bytes`: of an element.
MadeGradients GradientsMadeBy(const ModuleSpec& module, LayerId layer,
                              const ParallelLayout& parallel, int64_t bytes);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STAGE_MADE_GRADIENTS_H_
