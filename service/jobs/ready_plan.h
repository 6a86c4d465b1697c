// A plan that may be handed out, and the shares of it that ranks fetch.
#ifndef PIPELOOM_SERVICE_JOBS_READY_PLAN_H_
#define PIPELOOM_SERVICE_JOBS_READY_PLAN_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "ir/plan/execution_plan.h"
#include "pipeloom/v1/planner_service.pb.h"
#include "pipeloom/v1/service_state.pb.h"
#include "planner/core/search_budget.h"
#include "service/jobs/served_job.h"
#include "service/jobs/step_batch.h"
#include "service/plans/plan_ahead.h"
#include "service/plans/plan_cache.h"

namespace pipeloom::service {

// Identity of what a plan was made for, apart from its step and replica. A plan
// from disk is only served for the same.
struct PlanOrigin {
  Fingerprint job{};    // The content of the job as it was opened.
  Fingerprint batch{};  // The content of the batch.
  Fingerprint costs{};  // CostEpoch::context.
  int64_t attempt = 0;  // The training's attempt.
  friend bool operator==(const PlanOrigin&, const PlanOrigin&) = default;
};
PlanOrigin OriginOf(const StepBatch& batch);

// A plan that has passed ValidateExecutionPlan. Immutable once it is handed on.
struct ReadyPlan {
  std::string job_id{};
  PlanOrigin origin{};
  ExecutionPlan plan{};
  Fingerprint checksum{};       // Checksum of `plan`.
  Fingerprint step_checksum{};  // Equal for all replicas of a step.
  v1::PlanQuality quality = v1::PLAN_QUALITY_UNSPECIFIED;
  std::vector<v1::PlannedMicrobatch> microbatches{};
  std::vector<v1::ActivationChoice> activations{};  // Ordered by task.
  int32_t replicas_that_meet = 0;                   // v1::RankPlan has it.
  v1::PlanStatistics statistics{};
  // Whether job, batch and plan are on disk.
  bool durable = false;

  // Set by MakeShares. A rank's v1::RankPlan in bytes is its own share,
  // followed by the common share with the fields that all ranks have in common.
  // Shared, so that an answer that is not read yet does not keep the plan.
  IdVector<RankId, std::shared_ptr<const std::string>> shares{};
  std::shared_ptr<const std::string> common_share{};
  Bytes size{};  // Approximate memory of the whole object.
};

// Serialises the shares of a complete plan, so that answering a call only
// passes on bytes. Takes some 10 ms for 20,000 tasks.
void MakeShares(ReadyPlan* plan);

// The effort that a service may put into a search.
struct SearchEffort {
  int32_t threads = 1;
  int32_t workers = planner::kUsualWorkers;  // If the job does not say.
  std::chrono::nanoseconds most{};           // The longest that it may take.
  // Share of the job's deadline, or of `most`, that is left for it; below 1 the
  // search counts as cut short, and the plan of an equal one that was does.
  double part = 1;
};

// Returns a fingerprint of all that a search for a replica's plan depends on:
// an equal one finds its plan in the cache. Zeros: plans are not cached, or
// none can be made. O(instances).
Fingerprint SearchOf(const ServedJob& job, const StepBatch& batch,
                     int32_t replica);

// Plans one replica of a batch: takes the plan from the cache if an equal one
// is there, else searches until the job's deadline (at most effort.most) or its
// evaluations are used up, or `stop` is requested. If it is requested already,
// the plan of an equal search that was cut short does. The caller adds the
// statistics of time in the queue. FailedPrecondition: no plan fits the memory
// limit. Internal: the independent check refused the plan.
absl::StatusOr<ReadyPlan> MakeReadyPlan(const ServedJob& job,
                                        const StepBatch& batch, int32_t replica,
                                        const SearchEffort& effort,
                                        const std::stop_token& stop,
                                        PlanCache* cache);

v1::GetPlanResponse WholePlan(const ReadyPlan& plan);

v1::StoredPlan ToStored(const ReadyPlan& plan);
PlanOrigin OriginOf(const v1::StoredPlanHead& head);
// Converts a stored plan and checks it again.
absl::StatusOr<ReadyPlan> FromStored(const v1::StoredPlan& stored);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_READY_PLAN_H_
