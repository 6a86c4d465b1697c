// The files of one opening of a job in the state folder:
//
//   jobs/ID/job                           StoredJob
//   jobs/ID/batches/STEP.R                StoredBatch; R: a replica, or "all"
//   jobs/ID/plans/STEP.R                  StoredPlan
//   jobs/ID/attempt-N/batches, .../plans  the same for later attempts
//
// Work of a job that was closed never reaches the files of a later job of the
// same id: after Close, nothing is written, read or removed.
#ifndef PIPELOOM_SERVICE_JOBS_JOB_FILES_H_
#define PIPELOOM_SERVICE_JOBS_JOB_FILES_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "pipeloom/v1/service_state.pb.h"
#include "service/jobs/ready_plan.h"
#include "service/os/state_dir.h"

namespace pipeloom::service {

// See the top of the file. Errors of all methods, besides those they name:
// FailedPrecondition: there is no state folder. Cancelled: Close was called.
// Unavailable: the disk refuses, with path and reason. Thread-safe; different
// files are written and read at the same time.
class JobFiles {
 public:
  // `dir` may be null, for a service without a state folder, and outlives the
  // object.
  JobFiles(const StateDir* dir, std::string job)
      : dir_(dir), job_(std::move(job)) {}
  JobFiles(const JobFiles&) = delete;
  JobFiles& operator=(const JobFiles&) = delete;

  absl::Status SaveJob(const v1::StoredJob& job);
  // Returns whether the job's file is on disk.
  bool job_saved() const { return job_saved_; }
  void set_job_saved() { job_saved_ = true; }  // It was read from disk.
  // Held by whoever reads the job's values to save them, so that an older state
  // never replaces a newer one. Locked before the core's lock.
  Mutex& saving() ABSL_LOCK_RETURNED(saving_) { return saving_; }

  absl::Status SaveBatch(const v1::StoredBatch& batch) const;
  absl::Status SavePlan(const ReadyPlan& plan) const;
  // Reads and checks a plan, without its shares. NotFound: there is none.
  // DataLoss: the file is damaged, or its plan is of another job, batch, costs
  // or key than `origin` and the numbers.
  absl::StatusOr<ReadyPlan> LoadPlan(const PlanOrigin& origin, int64_t step,
                                     int32_t replica) const;
  // Returns the checksum of a plan without reading the plan itself, in about a
  // tenth of the time. Errors are those of LoadPlan. NotFound: there is none,
  // or the file does not say; older builds did not write it.
  absl::StatusOr<Fingerprint> FindPlan(const PlanOrigin& origin, int64_t step,
                                       int32_t replica) const;
  // Moves a plan's file out of the way without deleting it; returns its path.
  absl::StatusOr<std::string> KeepPlan(int64_t attempt, int64_t step,
                                       int32_t replica) const;
  // Removes a step's batches and the plans of all its replicas.
  absl::Status RemoveStep(int64_t attempt, int64_t step,
                          int32_t replicas) const;
  // Removes all batches and plans of an attempt.
  absl::Status RemoveAttempt(int64_t attempt) const;

  // Ends all use of the files, waits for writers, and moves the files out of
  // sight, which is quick. Returns the name of the files for
  // JobStore::Discard, which deletes them; empty if there are none.
  absl::StatusOr<std::string> Close();

 private:
  // Returns why the files must not be used, if so.
  absl::Status Usable() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns the content of a file.
  absl::StatusOr<std::string> Read(const std::string& name) const;

  const StateDir* const dir_;
  const std::string job_;
  std::atomic<bool> job_saved_{false};
  Mutex saving_ ABSL_ACQUIRED_BEFORE(mutex_){};
  // Held shared by whoever uses the files.
  mutable SharedMutex mutex_{};
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Returns the names of a job's files, relative to the state folder.
std::string JobFolder(const std::string& job);
std::string JobFileName(const std::string& job);
// The folder of an attempt's `kind`, which is "batches" or "plans".
std::string AttemptFolder(const std::string& job, int64_t attempt,
                          const std::string& kind);
std::string BatchFileName(const v1::SubmitBatchRequest& request);
std::string PlanFileName(const std::string& job, int64_t attempt, int64_t step,
                         int32_t replica);
// Reads the step and replica from the last part of a plan's name; false if it
// is not such a name.
bool ParsePlanFileName(const std::string& name, int64_t* step,
                       int32_t* replica);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_JOB_FILES_H_
