// A submitted batch, packed into microbatches, and its description in plans.
#ifndef PIPELOOM_SERVICE_JOBS_STEP_BATCH_H_
#define PIPELOOM_SERVICE_JOBS_STEP_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "partition/batching/batch_split.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "proto/convert/batch_proto.h"
#include "service/jobs/served_job.h"

namespace pipeloom::service {

// The largest number of a step and of an attempt.
inline constexpr int64_t kMaxSteps = int64_t{1} << 48;
inline constexpr int64_t kMaxAttempts = int64_t{1} << 48;

struct StepBatch {
  int64_t step = 0;
  int64_t attempt = 0;
  Fingerprint job{};     // Content of the job; set by whoever keeps the batch.
  int32_t replica = -1;  // -1: the batch is for all replicas.
  partition::PackedStep packed{};
  bool as_given = false;  // Whether the trainer chose the microbatches.
  Fingerprint content{};  // Fingerprint of the submitted batch.
  // Fingerprint of the samples alone, on which the loss shares in plans depend.
  Fingerprint samples_print{};
  // Totals of the whole batch. Loss weights are shares of text tokens, or of
  // samples where there is no text.
  int64_t text_tokens = 0;
  int64_t samples = 0;
  // A sentence of the samples' images, videos or audio that no module of the
  // model takes, so that they are planned without; empty: there are none.
  std::string unused_media{};
  std::shared_ptr<const CostEpoch> epoch{};
};

// Returns whether the samples may move to later steps, so that each step is
// planned anew.
bool PlansAnew(const ServedJob& job, const StepBatch& batch);

// Reads and packs a batch. Deals the samples anew by cost if the job says so
// and the trainer has not dealt them itself. InvalidArgument names the field: a
// step out of range, a replica that the job does not have, `microbatch_of`
// without a replica, of another length or with gaps, no samples, or too few.
// ResourceExhausted: the batch is over `limits`.
absl::StatusOr<StepBatch> MakeStepBatch(const ServedJob& job,
                                        const v1::SubmitBatchRequest& request,
                                        const convert::BatchLimits& limits);

// Returns an upper bound of the tasks of a replica's plan, without making any
// task.
absl::StatusOr<int64_t> CountTasks(const ServedJob& job, const StepBatch& batch,
                                   int32_t replica);

// Returns the samples, loss weight and sub-microbatches of each microbatch.
// `packed` has a replica's samples, indexed by microbatch, as in the batch or
// dealt anew. REQUIRES: `microbatches` is the result of SplitMicrobatches for
// them.
std::vector<v1::PlannedMicrobatch> PlannedMicrobatches(
    const StepBatch& batch, const std::vector<std::vector<SampleId>>& packed,
    const Microbatches& microbatches);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_STEP_BATCH_H_
