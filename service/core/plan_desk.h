// Makes the plans of submitted batches, on threads of its own: from disk if the
// plan was made before, from the cache if an equal one was, else by a search.
// A finished plan is written to disk before it is handed on.
#ifndef PIPELOOM_SERVICE_CORE_PLAN_DESK_H_
#define PIPELOOM_SERVICE_CORE_PLAN_DESK_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "planner/core/search_budget.h"
#include "service/jobs/job_store.h"
#include "service/jobs/job_table.h"
#include "service/os/deadline_timer.h"
#include "service/os/log.h"
#include "service/os/metrics.h"
#include "service/plans/plan_ahead.h"
#include "service/plans/plan_cache.h"

namespace pipeloom::service {

// A plan that the desk has made, or why it could not.
struct DeskResult {
  PlanKey key{};
  Submission submission{};
  Outcome outcome{};
  v1::PlanStatistics statistics{};
  // Time that the plan took, if it was hurried from the beginning.
  std::optional<std::chrono::nanoseconds> hurried{};
};

class PlanDesk {
 public:
  struct Options {
    int32_t threads = 2;  // Threads that search.
    // SearchBudget::workers of jobs that do not say how many.
    int32_t workers = planner::kUsualWorkers;
    // The longest search for a step, whatever the job asks for.
    std::chrono::nanoseconds max_search{std::chrono::seconds(60)};
    // A search is cut short if another job has waited so long for a thread, so
    // that none of its searches has begun.
    std::chrono::nanoseconds patience{std::chrono::seconds(5)};
    Bytes cache_bytes{int64_t{128} << 20};
  };
  // Functions of the object that owns the jobs. The desk's threads call them
  // and hold no lock while they do.
  struct Owner {
    // Returns whether the plan is still wanted; `cut_short`: its search was
    // asked to stop.
    std::function<bool(const PlanKey& key, const Submission& submission,
                       bool cut_short)>
        wants{};
    // Returns SearchPace::part of the job.
    std::function<double(const std::string& job)> part{};
    // Takes what was made. Called once for each plan that was wanted.
    std::function<void(DeskResult)> take{};
  };

  // REQUIRES: `store`, `timer`, `log` and `metrics` outlive the desk, and so
  // do the objects that the owner's functions use.
  PlanDesk(const Options& options, Owner owner, JobStore* store,
           DeadlineTimer* timer, Log* log, Metrics* metrics);
  // Asks running searches to stop and drops what is queued, unless End did.
  ~PlanDesk();
  PlanDesk(const PlanDesk&) = delete;
  PlanDesk& operator=(const PlanDesk&) = delete;

  // Begins to work. Plans may be queued before.
  void Start();
  // Asks running searches to stop, drops what is queued of these jobs, and
  // waits for the threads.
  void End(const std::vector<std::string>& jobs);

  // Queues a replica's plan; it is made after one of the same key that runs
  // already, and after one of the job with the same SearchOf, `search`.
  // `hurry`: there is no time to search.
  void Queue(const Submission& submission, int32_t replica,
             const Fingerprint& search, bool hurry);

  PlanAhead& queue() { return queue_; }
  const PlanAhead& queue() const { return queue_; }
  const PlanCache& cache() const { return cache_; }

 private:
  using Clock = std::chrono::steady_clock;

  void Make(const PlanKey& key, const Submission& submission,
            Clock::time_point submitted, const std::stop_token& stop);
  // Returns the search time that a plan of the job is charged with.
  Duration CostOf(const ServedJob& job) const;
  // Looks after the patience, as long as the key is queued, if its job's
  // searches are still as many as `begun`, and then makes room for it.
  void Watch(const PlanKey& key, int64_t begun);
  // Reads the plan from disk if it was made before, else makes it.
  absl::StatusOr<ReadyPlan> FindOrMake(const PlanKey& key,
                                       const Submission& submission,
                                       const std::stop_token& stop);
  void Count(const ReadyPlan& plan, std::chrono::nanoseconds search);
  // Hands on why there is no plan.
  void Fail(const PlanKey& key, const Submission& submission,
            const absl::Status& error);

  const Options options_;
  const Owner owner_;
  JobStore* const store_;
  DeadlineTimer* const timer_;
  Log* const log_;
  Metrics* const metrics_;
  PlanCache cache_;
  PlanAhead queue_{};
  std::vector<std::jthread> threads_{};  // Last, as they use all members.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_PLAN_DESK_H_
