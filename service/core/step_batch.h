// A batch as submitted, packed to microbatches, and what its plans say of it.
#ifndef PIPELOOM_SERVICE_CORE_STEP_BATCH_H_
#define PIPELOOM_SERVICE_CORE_STEP_BATCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "partition/batching/batch_split.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "proto/convert/batch_proto.h"
#include "service/core/served_job.h"

namespace pipeloom::service {

struct StepBatch {
  int64_t step = 0;
  int32_t replica = -1;  // -1: of all replicas.
  partition::PackedStep packed{};
  bool as_given = false;  // The microbatches are the trainer's own.
  Fingerprint content{};  // Of what was submitted.
  // Of the samples alone: plans say what part of all their loss is whose.
  Fingerprint samples_print{};
  // Of the whole batch; loss weights are shares of one of them.
  int64_t text_tokens = 0;
  int64_t samples = 0;
  std::shared_ptr<const CostEpoch> epoch{};
};

// Reads and packs; deals the samples anew by cost if the job says so and the
// trainer has not dealt them itself. InvalidArgument names the field: a step
// below 0, a replica that the job has not, `microbatch_of` without a replica or
// of another length or with gaps, no samples, or too few; ResourceExhausted:
// over `limits`.
absl::StatusOr<StepBatch> MakeStepBatch(const ServedJob& job,
                                        const v1::SubmitBatchRequest& request,
                                        const convert::BatchLimits& limits);

// Tasks of a replica's plan at most; count. Found before any is made.
absl::StatusOr<int64_t> CountTasks(const ServedJob& job, const StepBatch& batch,
                                   int32_t replica);

// By microbatch: samples, loss weights, slices. `packed` has a replica's
// samples by microbatch, as the batch has them or dealt anew. REQUIRES:
// `microbatches` is what SplitMicrobatches made of them.
std::vector<v1::PlannedMicrobatch> PlannedMicrobatches(
    const StepBatch& batch, const std::vector<std::vector<SampleId>>& packed,
    const Microbatches& microbatches);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_STEP_BATCH_H_
