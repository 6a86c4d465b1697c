// Assignment of the samples of a step to its replicas and microbatches by their
// costs: patches and squared lengths, not text tokens.
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

// Costs of samples for each module, all passes, as a linear form of the
// sample's tokens, squared tokens (attention) and context pairs
// (cross-attention). The coefficients are those of the cost model at the sizes
// typical of a job.
class SampleCosts {
 public:
  // Derives the coefficients. InvalidArgument: `typical_samples` are empty or
  // have no work for the model.
  static absl::StatusOr<SampleCosts> Create(
      const JobSpec& job, const emulator::StageCostModel& costs,
      const BatchMetadata& typical_samples);

  // Returns nanoseconds on one pipeline rank, indexed by module. O(media
  // items).
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

// Returns the same samples in the same number of microbatches per replica (or
// more, up to the job's, if the limits require it), each within the job's
// limits:
// - samples are assigned to replicas so that the costliest replica is cheap
//   (AssignLoads);
// - samples of a replica are assigned to microbatches so that each module's
//   cost is even over them: the surplus of a microbatch goes to another of the
//   same step (Entrain, arXiv 2605.27918, defers it);
// - the microbatches are in the order of OrderBySize.
//
// The gradient of the step does not change: it is a sum over the same samples,
// divided by the same totals (LossShare). If the limits leave no room for such
// a packing, whole microbatches are assigned to the replicas, and if that fails
// too the step is returned unchanged. O(samples x microbatches x modules /
// replicas).
PackedStep BalanceStep(const JobSpec& job, const SampleCosts& costs,
                       const PackedStep& step);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_BALANCE_STEP_H_
