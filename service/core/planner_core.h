// The service without its network interface: it brings calls, jobs and plans
// together.
//
//   OpenJob, Submit ──> JobTable ──> PlanDesk ──> Publisher ──> waiting calls
//                       (jobs, plans kept)  (makes plans)
//
// The table and the waiting calls are guarded by one lock, under which nothing
// takes long. A plan is written to the state folder, if there is one, before
// any caller gets it.
//
// All methods may be called from any thread. OpenJob, Submit, Report, WhatIf
// and Close may take long and write to disk; Await never blocks.
#ifndef PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_
#define PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "service/core/plan_desk.h"
#include "service/core/publisher.h"
#include "service/core/what_if.h"
#include "service/jobs/job_request.h"
#include "service/jobs/job_store.h"
#include "service/jobs/job_table.h"
#include "service/jobs/waiting_calls.h"
#include "service/os/deadline_timer.h"
#include "service/os/log.h"
#include "service/os/metrics.h"
#include "service/os/thread_priority.h"
#include "service/os/worker_pool.h"

namespace pipeloom::service {

// Those of the desk and of the table, and:
struct CoreOptions : PlanDesk::Options, JobTable::Limits {
  int32_t max_jobs = 64;
  int32_t max_queued = 4096;    // Queued plans of all jobs together.
  int32_t max_waiting = 16384;  // Calls that wait for plans.
  int64_t max_tasks = 400'000;  // Tasks of one plan.
  convert::BatchLimits batch{};
  // The longest search for a partition, whatever the caller asks for.
  std::chrono::nanoseconds partition_time{std::chrono::seconds(60)};
  // That of a job which asks for none; 0: its partition is made by rule.
  std::chrono::nanoseconds usual_partition_time{};
  // How long sample steps of a job that is opened are searched, within
  // `partition_time`, for the searches of its steps to go on from; 0: not. Jobs
  // that search by evaluations have none.
  std::chrono::nanoseconds warm_up_time{};
  // The same for jobs whose partition is searched, or was; if longer.
  std::chrono::nanoseconds searched_warm_up_time{};
  // Find a partition that a search found before for a request of this content,
  // and keep one. Called by several threads at a time. Empty: nothing is kept.
  std::function<std::optional<Partition>(const Fingerprint& content,
                                         const JobSpec& job)>
      find_partition{};
  std::function<void(const Fingerprint& content, const JobSpec& job,
                     const Partition& partition)>
      keep_partition{};
  // The same for what the job's sample steps teach (planner/job/warm_up.h) with
  // such a partition.
  std::function<std::optional<Lessons>(const Fingerprint& content,
                                       const Partition& partition)>
      find_lessons{};
  std::function<void(const Fingerprint& content, const Partition& partition,
                     const Lessons& lessons)>
      keep_lessons{};
  // When no more jobs may be open, a job without calls for so long is closed.
  std::chrono::nanoseconds idle_time{std::chrono::hours(1)};
  // The time by which jobs grow idle.
  std::function<std::chrono::steady_clock::time_point()> now =
      std::chrono::steady_clock::now;
  std::string state_dir{};  // Empty: nothing is kept on disk.
  ShippedFiles files{};
  ProfileSource profiles{};
};

class PlannerCore {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes a core, restores the state folder and plans the batches that were
  // queued. Unavailable: something in the state folder cannot be read, with its
  // path and the reason. REQUIRES: `log` and `metrics` outlive the core.
  static absl::StatusOr<std::unique_ptr<PlannerCore>> Create(
      CoreOptions options, Log* log, Metrics* metrics);
  // Cuts running searches short; waiting calls get Unavailable.
  ~PlannerCore();
  PlannerCore(const PlannerCore&) = delete;
  PlannerCore& operator=(const PlannerCore&) = delete;

  // Opens a job. A search for its partition ends shortly before `deadline` at
  // the latest. Cancelled: `stop` was requested. Aborted: another call is
  // opening the job; then `again` is called when that call has ended, perhaps
  // before this one returns.
  absl::StatusOr<v1::OpenJobResponse> OpenJob(
      const v1::OpenJobRequest& request,
      Clock::time_point deadline = Clock::time_point::max(),
      const std::stop_token& stop = {}, std::function<void()> again = {});
  // Queues a batch for planning. Sets `note` to StepBatch::unused_media.
  absl::StatusOr<v1::SubmitBatchResponse> Submit(
      const v1::SubmitBatchRequest& request, std::string* note = nullptr);
  // Learns costs from a measured trace.
  absl::StatusOr<v1::ReportTraceResponse> Report(
      const v1::ReportTraceRequest& request);
  // Plans a batch for variants of a job; see PlanVariants.
  absl::StatusOr<v1::WhatIfResponse> WhatIf(const v1::WhatIfRequest& request,
                                            const std::stop_token& stop) const;
  // Closes a job and deletes its files. Calls that wait for it get NotFound.
  // PermissionDenied: the job has another close_key.
  absl::StatusOr<v1::CloseJobResponse> Close(
      const v1::CloseJobRequest& request);
  v1::ListJobsResponse List() const;

  // Waits for a plan. Calls `done` once: before it returns if the plan is ready
  // or can never be, else from another thread, at `deadline` with
  // DeadlineExceeded. `rank` is checked against the job unless it is negative.
  // Returns an id for CancelAwait, or 0 if `done` was called.
  int64_t Await(const PlanKey& key, int32_t rank, Clock::time_point deadline,
                std::function<void(PlanOrError)> done);
  // Cancels a wait, so that `done` is not called. Returns false if it was
  // called or is about to be.
  bool CancelAwait(int64_t id);

  // Calls `listener` for every plan that is made or has failed, from any
  // thread; it must be quick. Returns an id for Unsubscribe.
  int64_t Subscribe(std::function<void(const v1::PlanStatistics&)> listener);
  void Unsubscribe(int64_t id);

  // Refuses new work, also for calls whose batch has not come, hurries the
  // plans that other calls wait for, and returns when no call waits or `grace`
  // is over.
  void Drain(std::chrono::nanoseconds grace);

  Metrics::Gauges gauges() const;

 private:
  // Calls of one plan and their answer.
  struct Due {
    std::vector<WaitingCall> calls{};
    PlanOrError outcome = absl::UnknownError("");
  };

  PlannerCore(CoreOptions options, Log* log, Metrics* metrics);

  // planner_restore.cc.
  absl::Status Restore();
  absl::Status RestoreJob(const std::shared_ptr<const ServedJob>& served,
                          const JobStore::Restored& restored)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status RestorePlan(const JobStore::Restored& restored,
                           const JobStore::PlanName& name, Job* job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SaveJob(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);

  // planner_jobs.cc.
  // Returns the answer if the job is open, or an error if another one is.
  std::optional<absl::StatusOr<v1::OpenJobResponse>> FindOpen(
      const JobRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reserves the job's id. Errors are those of OpenJob.
  absl::Status BeginOpening(const std::string& id, std::function<void()> again)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::OpenJobResponse Describe(const Job& job, bool existed) const;
  // Closes the job that has had no call for the longest, if that is long
  // enough.
  void CloseIdleJob() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CloseNow(const std::string& id, Fingerprint close_key,
                        const char* event) ABSL_LOCKS_EXCLUDED(mutex_);

  // planner_core.cc.
  absl::Status RefuseIfFull(int32_t plans) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the batch to its job. Returns whether it was there already.
  absl::StatusOr<bool> Accept(const std::string& id,
                              const std::vector<int64_t>& tasks,
                              StepBatch packed, Submission* submission)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes the note into the log unless the job has one there; empty: none.
  void LogUnusedMedia(const std::string& id, const std::string& note)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues a plan, unless the step was given up or the job closed meanwhile.
  void Enqueue(const Submission& submission, int32_t replica)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool Wants(const PlanKey& key, const Submission& submission,
             bool cut_short) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps a plan and answers the calls that wait for it.
  void Publish(const DeskResult& result) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes files and answers calls.
  void Finish(const Gone& gone, std::vector<Due> due = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // planner_calls.cc.
  // Checks a call and returns its plan if that is known; an empty pointer means
  // that the call has to wait.
  PlanOrError Look(const PlanKey& key, int32_t rank, bool* on_disk)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns when a search has to stop for a call with this deadline.
  static Clock::time_point HurryAt(const Job& job, Clock::time_point now,
                                   Clock::time_point deadline);
  // Take out the calls for a plan. Notes their fetches if they get it.
  Due TakeCalls(const PlanKey& key, PlanOrError outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<WaitingCall> TakeCall(int64_t number)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Take out the calls for steps that a job does not keep any more, and for
  // earlier attempts if a new one has begun.
  std::vector<Due> TakeLateCalls(const std::string& id, bool new_attempt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads a plan that is only on disk.
  void Load(const PlanKey& key) ABSL_LOCKS_EXCLUDED(mutex_);

  const CoreOptions options_;
  Log* log_;
  Metrics* metrics_;
  std::unique_ptr<JobStore> store_{};

  mutable Mutex mutex_{};
  JobTable table_ ABSL_GUARDED_BY(mutex_);
  WaitingCalls calls_ ABSL_GUARDED_BY(mutex_){};
  CondVar drained_{};  // A call left.
  // Jobs being opened or closed, and the functions to call when that has ended.
  std::map<std::string, std::vector<std::function<void()>>> opening_
      ABSL_GUARDED_BY(mutex_){};
  std::set<PlanKey> loading_ ABSL_GUARDED_BY(mutex_){};
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;

  // Set once, before any call. Its threads end first, in the destructor.
  std::unique_ptr<PlanDesk> desk_{};
  DeadlineTimer timer_{};  // Its functions use the desk's queue.
  Publisher publisher_{};
  // Reads plans from disk.
  WorkerPool loads_{1, std::numeric_limits<int32_t>::max(),
                    [] { MakeWayForServing(Background::kRequests); }};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_
