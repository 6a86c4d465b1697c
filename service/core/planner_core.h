// The service without its network interface: jobs, queued batches, ready plans,
// and the calls that wait for them.
//
//   OpenJob, Submit ──> PlanAhead ──> MakeReadyPlan ──> state folder ──>
//   waiters
//
// Once handed out, a plan of a (job, step, replica) never changes. It is kept
// for `keep_steps` steps; with a state folder also on disk, where it is written
// before any caller gets it.
//
// All methods may be called from any thread. OpenJob, Submit, Report and
// WhatIf may take long and write to disk; Await never blocks.
#ifndef PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_
#define PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "planner/step/plan_ahead.h"
#include "planner/step/plan_cache.h"
#include "service/core/core_state.h"
#include "service/core/learned_costs.h"
#include "service/core/ready_plan.h"
#include "service/core/served_job.h"
#include "service/core/step_batch.h"
#include "service/core/what_if.h"
#include "service/os/deadline_timer.h"
#include "service/os/log.h"
#include "service/os/metrics.h"
#include "service/os/thread_priority.h"
#include "service/os/worker_pool.h"

namespace pipeloom::service {

struct CoreOptions {
  int32_t threads = 2;  // Threads that search.
  int32_t max_jobs = 64;
  int32_t max_queued = 4096;    // Queued plans of all jobs together.
  int32_t max_waiting = 16384;  // Calls that wait for plans.
  int64_t max_tasks = 400'000;  // Tasks of one plan.
  convert::BatchLimits batch{};
  // Steps that each job keeps behind the newest that was submitted.
  int64_t keep_steps = 64;
  Bytes plan_bytes{int64_t{1} << 30};  // Memory of all ready plans.
  Bytes cache_bytes{int64_t{256} << 20};
  // The longest search for a partition, whatever the caller asks for.
  std::chrono::nanoseconds partition_time{std::chrono::seconds(60)};
  std::string state_dir{};  // Empty: nothing is kept on disk.
  ShippedFiles files{};
  ProfileSource profiles{};
};

// A plan, or the reason why there is none.
using PlanOrError = absl::StatusOr<std::shared_ptr<const ReadyPlan>>;

class PlannerCore {
 public:
  using Clock = std::chrono::steady_clock;

  // Makes a core, restores the state folder and plans the batches that were
  // queued. REQUIRES: `log` and `metrics` outlive the core.
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
  // Queues a batch for planning.
  absl::StatusOr<v1::SubmitBatchResponse> Submit(
      const v1::SubmitBatchRequest& request);
  // Learns costs from a measured trace.
  absl::StatusOr<v1::ReportTraceResponse> Report(
      const v1::ReportTraceRequest& request);
  // Plans a batch for variants of a job; see PlanVariants.
  absl::StatusOr<v1::WhatIfResponse> WhatIf(const v1::WhatIfRequest& request,
                                            const std::stop_token& stop) const;
  // Closes a job and deletes its files. Calls that wait for it get NotFound.
  v1::CloseJobResponse Close(const std::string& job_id);

  // Waits for a plan. Calls `done` once: before it returns if the plan is ready
  // or can never be, else from another thread, at `deadline` with
  // DeadlineExceeded. `rank` is checked against the job unless it is negative.
  // Returns an id for CancelAwait, or 0 if `done` was called.
  int64_t Await(const planner::PlanKey& key, int32_t rank,
                Clock::time_point deadline,
                std::function<void(PlanOrError)> done);
  // Cancels a wait, so that `done` is not called. Returns false if it was
  // called or is about to be.
  bool CancelAwait(int64_t id);

  // Calls `listener` for every plan that is made or has failed, from any
  // thread; it must be quick. Returns an id for Unsubscribe.
  int64_t Subscribe(std::function<void(const v1::PlanStatistics&)> listener);
  void Unsubscribe(int64_t id);

  // Refuses new work, hurries the plans that calls wait for, and returns when
  // no call waits or `grace` is over.
  void Drain(std::chrono::nanoseconds grace);

  Metrics::Gauges gauges() const;

 private:
  using Outcome = std::variant<std::shared_ptr<const ReadyPlan>, absl::Status>;
  struct Step {
    std::shared_ptr<const CostEpoch> epoch{};
    std::map<int32_t, std::shared_ptr<const StepBatch>> batches{};
    std::map<int32_t, Outcome> plans{};  // Indexed by replica.
    // Replicas and ranks whose traces were reported.
    std::set<std::pair<int32_t, int32_t>> reported{};
  };
  struct Job {
    explicit Job(std::shared_ptr<const ServedJob> a_job)
        : served(std::move(a_job)),
          learned(served->spec().model.modules.size()) {}
    std::shared_ptr<const ServedJob> served;
    Fingerprint request{};
    bool cut_short = false;  // Whether the partition search was cut short.
    LearnedCosts learned;
    // Allows one report at a time. Locked before the core's lock.
    std::shared_ptr<std::mutex> reporting = std::make_shared<std::mutex>();
    std::shared_ptr<const CostEpoch> epoch{};
    std::map<int64_t, Step> steps{};
    int64_t newest = -1;
    int64_t fetched = -1;  // The newest step of which a plan was handed out.
    // Moving average of the time that a hurried plan takes.
    std::chrono::nanoseconds least_time{std::chrono::milliseconds(50)};
  };
  struct Waiter {
    planner::PlanKey key{};
    Clock::time_point hurry_at{};
    std::function<void(PlanOrError)> done{};
  };
  // Waiters to be called without the lock.
  struct Due {
    std::vector<std::function<void(PlanOrError)>> waiters{};
    PlanOrError outcome = absl::UnknownError("");
  };

  PlannerCore(CoreOptions options, Log* log, Metrics* metrics);

  void Restore();
  void Start();
  // Returns an error if the queue is full, and evicts old steps if ready plans
  // take too much memory. REQUIRES: the lock is held; the caller frees `gone`
  // without it, as answering threads need the lock.
  absl::Status RefuseIfFull(int32_t plans, std::vector<Step>* gone);
  void Enqueue(const std::shared_ptr<const ServedJob>& job,
               const std::shared_ptr<const StepBatch>& batch, int32_t replica);
  void MakePlan(const ServedJob& job,
                const std::shared_ptr<const StepBatch>& submission,
                int32_t replica, Clock::time_point submitted,
                const std::stop_token& stop);
  // Returns the step, or null if it does not have this submission (any more).
  // REQUIRES: the lock is held.
  Step* FindStep(const planner::PlanKey& key,
                 const std::shared_ptr<const StepBatch>& submission);
  // Calls Publish on a thread of usual priority.
  void PublishSoon(const planner::PlanKey& key,
                   const std::shared_ptr<const StepBatch>& submission,
                   const Outcome& outcome,
                   const v1::PlanStatistics& statistics);
  void Publish(const planner::PlanKey& key,
               const std::shared_ptr<const StepBatch>& submission,
               const Outcome& outcome, const v1::PlanStatistics& statistics);
  void Forget(const std::string& id, Job* job,
              std::vector<std::pair<int64_t, Step>>* gone);
  // Answers calls that wait for a step that is not kept any more. REQUIRES: the
  // lock is held.
  void RefuseLateWaiters(const std::string& id, int64_t newest);
  bool EvictOldest(std::vector<Step>* gone);
  std::vector<std::function<void(PlanOrError)>> TakeWaiters(
      const planner::PlanKey& key);
  // Removes a waiter and returns its function; empty if it is gone.
  std::function<void(PlanOrError)> TakeWaiter(int64_t id);
  void SaveJob(const std::string& id);
  void StateError(absl::string_view what, const absl::Status& status);

  const CoreOptions options_;
  Log* log_;
  Metrics* metrics_;
  std::unique_ptr<CoreState> state_{};
  planner::PlanCache cache_;
  planner::PlanAhead ahead_{};

  mutable std::mutex mutex_{};
  std::condition_variable waiters_left_{};
  std::map<std::string, Job> jobs_{};
  // Jobs being opened, and the functions to call when that has ended.
  std::map<std::string, std::vector<std::function<void()>>> opening_{};
  std::map<int64_t, Waiter> waiters_{};
  std::multimap<planner::PlanKey, int64_t> waiting_{};
  std::map<int64_t, std::function<void(const v1::PlanStatistics&)>>
      listeners_{};
  int64_t next_id_ = 1;
  Bytes plan_bytes_{};
  bool draining_ = false;

  DeadlineTimer timer_{};
  WorkerPool answers_{1, std::numeric_limits<int32_t>::max(), AnswerAtOnce};
  std::vector<std::jthread> workers_{};  // Last, as they use all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_
