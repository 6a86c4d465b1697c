// The service without its wire: jobs, batches that wait, plans that are ready,
// and who waits for them.
//
//   OpenJob, Submit ──> PlanAhead ──> MakeReadyPlan ──> state folder ──>
//   waiters
//
// Once handed out, a plan of a (job, step, replica) never changes: it is kept
// for `keep_steps` steps, on disk too where there is a state folder, and is on
// disk before anybody sees it.
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
  int32_t threads = 2;  // Of searches.
  int32_t max_jobs = 64;
  int32_t max_queued = 4096;    // Plans that wait, of all jobs.
  int32_t max_waiting = 16384;  // Calls that wait.
  int64_t max_tasks = 400'000;  // Of a plan.
  convert::BatchLimits batch{};
  int64_t keep_steps = 64;  // Of a job, behind the newest that was submitted.
  Bytes plan_bytes{int64_t{1} << 30};  // Of plans that are ready.
  Bytes cache_bytes{int64_t{256} << 20};
  // A search for a partition may take, whatever the caller asks for.
  std::chrono::nanoseconds partition_time{std::chrono::seconds(60)};
  std::string state_dir{};  // Empty: nothing is kept.
  ShippedFiles files{};
  ProfileSource profiles{};
};

// A plan, or why there is none.
using PlanOrError = absl::StatusOr<std::shared_ptr<const ReadyPlan>>;

class PlannerCore {
 public:
  using Clock = std::chrono::steady_clock;

  // Reads the state folder and goes on with what was waiting. `log` and
  // `metrics` must outlive it.
  static absl::StatusOr<std::unique_ptr<PlannerCore>> Create(
      CoreOptions options, Log* log, Metrics* metrics);
  // Running searches are cut short; calls that wait get Unavailable.
  ~PlannerCore();
  PlannerCore(const PlannerCore&) = delete;
  PlannerCore& operator=(const PlannerCore&) = delete;

  // If the partition is searched for: until shortly before `deadline` at most.
  // Cancelled: `stop` was requested. Aborted: another call is opening the job;
  // `again` is called when that is over, perhaps before this returns.
  absl::StatusOr<v1::OpenJobResponse> OpenJob(
      const v1::OpenJobRequest& request,
      Clock::time_point deadline = Clock::time_point::max(),
      const std::stop_token& stop = {}, std::function<void()> again = {});
  absl::StatusOr<v1::SubmitBatchResponse> Submit(
      const v1::SubmitBatchRequest& request);
  absl::StatusOr<v1::ReportTraceResponse> Report(
      const v1::ReportTraceRequest& request);
  absl::StatusOr<v1::WhatIfResponse> WhatIf(const v1::WhatIfRequest& request,
                                            const std::stop_token& stop) const;
  v1::CloseJobResponse Close(const std::string& job_id);

  // Calls `done` once: at once if the plan is ready or cannot be, else from
  // another thread, at `deadline` with DeadlineExceeded. `rank` is checked
  // against the job unless negative. Returns an id, 0 if `done` was called.
  int64_t Await(const planner::PlanKey& key, int32_t rank,
                Clock::time_point deadline,
                std::function<void(PlanOrError)> done);
  // `done` will not be called; false: it was, or is about to be.
  bool CancelAwait(int64_t id);

  // `listener` is called for every plan that is made, from any thread; it must
  // be quick.
  int64_t Subscribe(std::function<void(const v1::PlanStatistics&)> listener);
  void Unsubscribe(int64_t id);

  // Refuses new work, and returns when nobody waits any more or `grace` is
  // over. What is waited for is hurried.
  void Drain(std::chrono::nanoseconds grace);

  Metrics::Gauges gauges() const;

 private:
  using Outcome = std::variant<std::shared_ptr<const ReadyPlan>, absl::Status>;
  struct Step {
    std::shared_ptr<const CostEpoch> epoch{};
    std::map<int32_t, std::shared_ptr<const StepBatch>> batches{};
    std::map<int32_t, Outcome> plans{};                // By replica.
    std::set<std::pair<int32_t, int32_t>> reported{};  // Replica and rank.
  };
  struct Job {
    explicit Job(std::shared_ptr<const ServedJob> a_job)
        : served(std::move(a_job)),
          learned(served->spec().model.modules.size()) {}
    std::shared_ptr<const ServedJob> served;
    Fingerprint request{};
    bool cut_short = false;  // The search for its partition.
    LearnedCosts learned;
    // One report at a time; taken before the core's lock.
    std::shared_ptr<std::mutex> reporting = std::make_shared<std::mutex>();
    std::shared_ptr<const CostEpoch> epoch{};
    std::map<int64_t, Step> steps{};
    int64_t newest = -1;
    int64_t fetched = -1;  // The newest step that somebody got.
    // What a plan takes that has to be ready at once.
    std::chrono::nanoseconds least_time{std::chrono::milliseconds(50)};
  };
  struct Waiter {
    planner::PlanKey key{};
    Clock::time_point hurry_at{};
    std::function<void(PlanOrError)> done{};
  };
  struct Due {  // To be called without the lock.
    std::vector<std::function<void(PlanOrError)>> waiters{};
    PlanOrError outcome = absl::UnknownError("");
  };

  PlannerCore(CoreOptions options, Log* log, Metrics* metrics);

  void Restore();
  void Start();
  // With the lock, as what follows it; what is `gone` is freed without it,
  // since who answers may need it meanwhile.
  absl::Status RefuseIfFull(int32_t plans, std::vector<Step>* gone);
  void Enqueue(const std::shared_ptr<const ServedJob>& job,
               const std::shared_ptr<const StepBatch>& batch, int32_t replica);
  void MakePlan(const ServedJob& job,
                const std::shared_ptr<const StepBatch>& submission,
                int32_t replica, Clock::time_point submitted,
                const std::stop_token& stop);
  // Null: the batch is not the step's, or not any more. With the lock.
  Step* FindStep(const planner::PlanKey& key,
                 const std::shared_ptr<const StepBatch>& submission);
  // On a thread that keeps its core while it answers.
  void PublishSoon(const planner::PlanKey& key,
                   const std::shared_ptr<const StepBatch>& submission,
                   const Outcome& outcome,
                   const v1::PlanStatistics& statistics);
  void Publish(const planner::PlanKey& key,
               const std::shared_ptr<const StepBatch>& submission,
               const Outcome& outcome, const v1::PlanStatistics& statistics);
  void Forget(const std::string& id, Job* job,
              std::vector<std::pair<int64_t, Step>>* gone);
  // Who waits for a step that is not kept any more. With the lock.
  void RefuseLateWaiters(const std::string& id, int64_t newest);
  bool EvictOldest(std::vector<Step>* gone);
  std::vector<std::function<void(PlanOrError)>> TakeWaiters(
      const planner::PlanKey& key);
  std::function<void(PlanOrError)> TakeWaiter(int64_t id);  // Or empty.
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
  // By job: who wants to be told when it is open, or is not.
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
  std::vector<std::jthread> workers_{};  // Last: they use the others.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_PLANNER_CORE_H_
