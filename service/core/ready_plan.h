// A plan that may be handed out, and the shares of it that ranks fetch.
#ifndef PIPELOOM_SERVICE_CORE_READY_PLAN_H_
#define PIPELOOM_SERVICE_CORE_READY_PLAN_H_

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
#include "planner/step/plan_ahead.h"
#include "planner/step/plan_cache.h"
#include "service/core/served_job.h"
#include "service/core/step_batch.h"

namespace pipeloom::service {

// A plan that has passed ValidateExecutionPlan. Immutable once it is handed on.
struct ReadyPlan {
  std::string job_id{};
  ExecutionPlan plan{};
  Fingerprint checksum{};       // Checksum of `plan`.
  Fingerprint step_checksum{};  // Equal for all replicas of a step.
  v1::PlanQuality quality = v1::PLAN_QUALITY_UNSPECIFIED;
  std::vector<v1::PlannedMicrobatch> microbatches{};
  std::vector<v1::ActivationChoice> activations{};  // Ordered by task.
  v1::PlanStatistics statistics{};
  bool durable = false;  // Whether it is on disk.

  // Set by MakeShares. A rank's v1::RankPlan in bytes is its own share,
  // followed by the common share with the fields that all ranks have in common.
  IdVector<RankId, std::string> shares{};
  std::string common_share{};
  Bytes size{};  // Approximate memory of the whole object.
};

// Serialises the shares of a complete plan, so that answering a call only
// passes on bytes. Takes some 10 ms for 20,000 tasks.
void MakeShares(ReadyPlan* plan);

// Plans one replica of a batch: takes the plan from the cache if an equal one
// is there, else searches until the job's deadline or evaluations are used up
// or `stop` is requested. The caller adds the statistics of time in the queue.
// FailedPrecondition: no plan fits the memory limit. Internal: the independent
// check refused the plan.
absl::StatusOr<ReadyPlan> MakeReadyPlan(const ServedJob& job,
                                        const StepBatch& batch, int32_t replica,
                                        int32_t threads,
                                        const std::stop_token& stop,
                                        planner::PlanCache* cache);

v1::GetPlanResponse WholePlan(const ReadyPlan& plan);

v1::StoredPlan ToStored(const ReadyPlan& plan);
// Converts a stored plan and checks it again.
absl::StatusOr<ReadyPlan> FromStored(const v1::StoredPlan& stored);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_READY_PLAN_H_
