// Errors and names that the parts of PlannerCore share.
#ifndef PIPELOOM_SERVICE_JOBS_JOB_ERRORS_H_
#define PIPELOOM_SERVICE_JOBS_JOB_ERRORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/jobs/step_batch.h"
#include "service/plans/plan_ahead.h"

namespace pipeloom::service {

// The name of a status payload that says after how long a retry may succeed:
// milliseconds as text.
inline constexpr char kRetryAfter[] = "retry-after-ms";

// The name of trailing metadata of SubmitBatch: StepBatch::unused_media as
// UTF-8, if there are any. The same batch gets the same.
inline constexpr char kNote[] = "note-bin";

// Returns ResourceExhausted with that payload.
inline absl::Status Busy(const std::string& message, int64_t retry_after_ms) {
  absl::Status status = absl::ResourceExhaustedError(message);
  // Made from a view, as GCC, which built the library, and Clang mangle the
  // constructor from a string differently.
  const std::string text = absl::StrCat(retry_after_ms);
  status.SetPayload(kRetryAfter, absl::Cord(absl::string_view(text)));
  return status;
}

inline absl::Status NoJob(const std::string& id) {
  return absl::NotFoundError(
      absl::StrFormat("job_id is \"%s\"; there is no such job open", id));
}

// Tells a run that another one, or its own restart, has the job now.
inline absl::Status OldAttempt(const std::string& job, int64_t attempt,
                               int64_t current) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "attempt is %d; attempt %d of job %s has begun, so it must be at least "
      "that; if another run began it, give each run a job_id of its own",
      attempt, current, job));
}

inline std::string NameOf(const PlanKey& key) {
  return absl::StrFormat("step %d, replica %d of job %s", key.step, key.replica,
                         key.job);
}

// Returns the replicas that a batch belongs to. `all` is the job's number of
// replicas.
inline std::vector<int32_t> ReplicasOf(const StepBatch& batch, int32_t all) {
  if (batch.replica >= 0) return {batch.replica};
  std::vector<int32_t> replicas;
  for (int32_t r = 0; r < all; ++r) replicas.push_back(r);
  return replicas;
}

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_JOB_ERRORS_H_
