// The samples of a step dealt anew to its replicas and microbatches, by what
// they cost: patches and squared lengths, not text tokens.
#ifndef PIPELOOM_PARTITION_BATCHING_BALANCE_STEP_H_
#define PIPELOOM_PARTITION_BATCHING_BALANCE_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"
#include "partition/batching/typical_work.h"

namespace pipeloom::partition {

// What a sample costs each module, all passes, as a linear form of its tokens,
// its squared tokens (attention) and its context pairs (cross-attention). The
// coefficients are those of the cost model at the sizes typical of a job.
class SampleCosts {
 public:
  // InvalidArgument: `typical_samples` are empty or no work for the model.
  static absl::StatusOr<SampleCosts> Create(
      const JobSpec& job, const emulator::StageCostModel& costs,
      const BatchMetadata& typical_samples);

  // Nanoseconds on one pipeline rank, by module. O(media items).
  IdVector<ModuleId, int64_t> Of(const ModelSpec& model,
                                 const SampleMetadata& sample) const;

 private:
  struct Rates {
    double per_token = 0;
    double per_square = 0;
    double per_pair = 0;
  };
  IdVector<ModuleId, Rates> rates_{};
};

// The same samples in the same number of microbatches a replica (or more, up to
// the job's, where the limits ask for it), each within the job's limits:
// - samples to replicas so that the costliest replica is cheap (AssignLoads);
// - a replica's samples to microbatches so that each module's cost is even over
//   them: what one microbatch has too much of goes to another of the same step
//   (Entrain, arXiv 2605.27918, defers it);
// - the microbatches in the order of OrderBySize.
// The gradient of the step stays what it is: a sum over the same samples,
// divided by the same totals (LossShare). Where the limits leave no room for
// such a packing, whole microbatches are dealt to the replicas, and where not
// even that helps the step is returned as it was. O(samples x microbatches x
// modules / replicas).
PackedStep BalanceStep(const JobSpec& job, const SampleCosts& costs,
                       const PackedStep& step);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_BALANCE_STEP_H_
