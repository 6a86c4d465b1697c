// The table of open jobs: their steps, the plans of these, and the memory that
// the plans take. It decides which batches are accepted, which plans are kept,
// and which are given up first.
//
// Once handed out, a plan of a (job, attempt, step, replica) never changes. A
// plan that some rank has still to fetch is kept, or can be read from disk
// again. A rank that has fetched a later step does not come back for an earlier
// one. Any other plan may be given up when memory is short, and is never made
// again.
//
// The table has no lock, no threads and no files: its owner does all three.
// Each change hands out in `Gone` what the owner frees and deletes without its
// lock.
#ifndef PIPELOOM_SERVICE_JOBS_JOB_TABLE_H_
#define PIPELOOM_SERVICE_JOBS_JOB_TABLE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "base/mutex.h"
#include "base/units.h"
#include "emulator/calibration/cost_learner.h"
#include "service/jobs/job_files.h"
#include "service/jobs/ready_plan.h"
#include "service/jobs/served_job.h"
#include "service/jobs/step_batch.h"
#include "service/jobs/waiting_calls.h"
#include "service/plans/plan_ahead.h"
#include "service/plans/search_pace.h"

namespace pipeloom::service {

// A plan that is only on disk.
struct OnDisk {
  Fingerprint checksum{};
};
// The state of a plan that was made.
using Outcome = std::variant<PlanPtr, absl::Status, OnDisk>;

struct Step {
  std::shared_ptr<const CostEpoch> epoch{};
  // Indexed by replica; -1: of all replicas.
  std::map<int32_t, std::shared_ptr<const StepBatch>> batches{};
  std::map<int32_t, Outcome> plans{};  // Indexed by replica.
  // Memory that plans are expected to take that are not made yet. Indexed by
  // replica.
  std::map<int32_t, Bytes> promised{};
  // Replicas and ranks whose traces were reported.
  std::set<std::pair<int32_t, int32_t>> reported{};
  // Whether its plans were given up for lack of memory. It is never planned
  // again, as another plan might come of it.
  bool dropped = false;
};

struct Job {
  // The newest steps that were fetched of a replica; -1: none.
  struct Fetches {
    std::vector<int64_t> ranks{};  // Indexed by rank.
    int64_t whole = -1;            // Fetched whole, by GetPlan.
  };

  explicit Job(std::shared_ptr<const ServedJob> a_job)
      : served(std::move(a_job)) {}
  int32_t replicas() const { return served->spec().parallel.dp; }

  std::shared_ptr<const ServedJob> served;
  Fingerprint request{};
  Fingerprint close_key{};  // Zeros: none.
  std::shared_ptr<JobFiles> files{};
  bool cut_short = false;  // Whether the partition search was cut short.
  emulator::CostLearner learned{};
  // Allows one report at a time. Locked before the table's lock.
  std::shared_ptr<Mutex> reporting = std::make_shared<Mutex>();
  std::shared_ptr<const CostEpoch> epoch{};
  int64_t attempt = 0;
  bool attempt_saved = false;  // Whether the job's file states it.
  bool logged_media = false;   // Whether the log has a StepBatch::unused_media.
  std::map<int64_t, Step> steps{};
  int64_t newest = -1;
  std::map<int32_t, Fetches> fetches{};  // Indexed by replica.
  Bytes plan_bytes{};                    // Made and promised.
  double bytes_per_task = 400;           // Average over plans made so far.
  std::chrono::steady_clock::time_point used{};  // Time of the latest call.
  SearchPace pace{};
  // Moving average of the time that a hurried plan takes.
  std::chrono::nanoseconds least_time{std::chrono::milliseconds(50)};
};

// A batch that is to be planned, with what its plans need.
struct Submission {
  std::shared_ptr<const ServedJob> job{};
  std::shared_ptr<JobFiles> files{};
  std::shared_ptr<const StepBatch> batch{};
  bool saved = false;  // Whether the batch is on disk.
};

// Plans and steps that were given up, freed by the destructor, which may take
// milliseconds.
struct Gone {
  // Files to remove.
  struct Files {
    std::shared_ptr<JobFiles> files{};
    int64_t attempt = 0;
    int64_t step = -1;  // -1: the whole attempt.
    int32_t replicas = 0;
  };
  std::vector<Step> steps{};
  std::vector<PlanPtr> plans{};
  std::vector<Files> files{};
};

class JobTable {
 public:
  struct Limits {
    // Steps that each job keeps behind the newest that was submitted.
    int64_t keep_steps = 64;
    // The furthest that a batch may be ahead of the newest one; more is a
    // mistake, and would drop every plan.
    int64_t max_step_jump = 100'000;
    Bytes plan_bytes{int64_t{1} << 30};  // Memory of all plans.
    // While all plans take more than this, those that every rank has fetched
    // or passed are given up: few ask for them again. But not those of a job's
    // newest steps among them, which run or will, so that their times have
    // still to be reported.
    Bytes passed_bytes{int64_t{192} << 20};
    int64_t reported_steps = 4;
  };
  using Jobs = std::map<std::string, Job>;

  explicit JobTable(const Limits& limits) : limits_(limits) {}
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;

  const Jobs& jobs() const { return jobs_; }
  // Returns null if there is no such job.
  Job* Find(const std::string& id);
  const Job* Find(const std::string& id) const;
  // REQUIRES: there is no such job.
  Job& Add(const std::string& id, Job job);
  // REQUIRES: there is such a job.
  Jobs::node_type Remove(const std::string& id, Gone* gone);

  // Adds a batch to the submission's job, and sets the submission's batch and
  // files. `tasks`: an upper bound of the tasks of each replica's plan. A
  // larger attempt than the job's drops all its steps. Returns whether the
  // batch was there already. Errors are those of SubmitBatch; a refused batch
  // changes nothing but the attempt.
  absl::StatusOr<bool> Accept(const std::string& id,
                              const std::vector<int64_t>& tasks,
                              StepBatch packed, const WaitingCalls& calls,
                              Submission* submission, Gone* gone);
  // Returns the step, or null if it does not have this submission (any more):
  // the job may have been closed and opened anew with another batch.
  Step* FindStep(const PlanKey& key,
                 const std::shared_ptr<const StepBatch>& submission);
  // Returns the batch of a plan that is on disk only, and sets its checksum;
  // null if it is not (any more).
  std::shared_ptr<const StepBatch> FindOnDisk(const PlanKey& key,
                                              Fingerprint* checksum) const;
  bool HasStep(const PlanKey& key,
               const std::shared_ptr<const StepBatch>& submission) const;
  // Returns whether the batch of a plan is known.
  bool HasBatch(const PlanKey& key) const;
  // Returns the outcome of a plan of the job's attempt, or null.
  static const Outcome* FindOutcome(const Job& job, const PlanKey& key);
  // Returns whether a step's plans are not kept any more.
  bool IsForgotten(const Job& job, int64_t step) const;
  // Returns the newest step that is too old to be kept; negative: none.
  int64_t NewestDropped(const Job& job) const {
    return job.newest - limits_.keep_steps;
  }

  // Sets the outcome of a plan. REQUIRES: the step is the job's.
  void SetOutcome(int32_t replica, Outcome outcome, Job* job, Step* step);
  // Returns whether a plan of this size fits the limit.
  bool HasRoom(Bytes size) const {
    return plan_bytes_ + size <= limits_.plan_bytes;
  }
  // Notes that a call for a plan leaves before there is one. Returns whether
  // the job's searches take less time from now on.
  bool NoteLate(const PlanKey& key);
  // Notes that a plan is handed out.
  static void NoteFetch(const PlanKey& key, int32_t rank, Job* job);
  // Returns the newest step that every rank has fetched or passed; -1: none.
  static int64_t PassedBy(const Job& job);
  // Gives up plans that are over a limit and not needed in memory.
  void EvictToLimit(const WaitingCalls& calls, Gone* gone);
  // Drops steps that are too far behind the newest one.
  void Forget(Job* job, Gone* gone);

  // Memory of plans that are made.
  Bytes plan_bytes() const { return plan_bytes_; }

 private:
  // Refuses a batch that the job's steps rule out. Returns whether the very
  // batch was there already.
  absl::StatusOr<bool> CheckBatch(const Job& job,
                                  const StepBatch& packed) const;
  void BeginAttempt(int64_t attempt, Job* job, Gone* gone);
  // Makes room for a plan of these bytes. ResourceExhausted: what is kept is
  // still needed, and the job can wait.
  absl::Status MakeRoom(const Job& job, int64_t step, Bytes bytes,
                        const WaitingCalls& calls, Gone* gone);
  // Gives up one step or plan; returns false if all are needed in memory.
  bool EvictOne(const WaitingCalls& calls, Gone* gone);
  // Jobs, the one with the most memory first.
  std::vector<Jobs::value_type*> ByMemory();
  // Gives up a step that every rank has fetched or passed, of the job with the
  // most memory that has one; but not the newest `spared` of a job.
  bool EvictOnePassed(int64_t spared, Gone* gone);
  bool EvictPassed(int64_t spared, Job* job, Gone* gone);
  bool EvictDurable(const std::string& id, const WaitingCalls& calls, Job* job,
                    Gone* gone);
  // Frees a plan's memory. REQUIRES: `outcome` is a plan in memory.
  void Free(Outcome* outcome, Job* job, Gone* gone);
  // Frees a plan's memory, as it can be read from disk again.
  void LeaveOnDisk(Outcome* outcome, Job* job, Gone* gone);
  // Accounts for memory of a plan that is expected, or is not any more.
  void Promise(int32_t replica, Bytes bytes, Job* job, Step* step);
  void Fulfil(int32_t replica, Job* job, Step* step);
  // Frees all plans of a step.
  void FreePlans(Job* job, Step* step, Gone* gone);

  const Limits limits_;
  Jobs jobs_{};
  // Memory of plans that are made, and of those that are expected.
  Bytes plan_bytes_{};
  Bytes promised_bytes_{};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_JOB_TABLE_H_
