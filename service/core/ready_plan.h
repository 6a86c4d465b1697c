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

// Has passed ValidateExecutionPlan. Nothing changes once it is handed on.
struct ReadyPlan {
  std::string job_id{};
  ExecutionPlan plan{};
  Fingerprint checksum{};       // Of `plan`.
  Fingerprint step_checksum{};  // Equal for all replicas of a step.
  v1::PlanQuality quality = v1::PLAN_QUALITY_UNSPECIFIED;
  std::vector<v1::PlannedMicrobatch> microbatches{};
  std::vector<v1::ActivationChoice> activations{};  // By task.
  v1::PlanStatistics statistics{};
  bool durable = false;

  // A rank's v1::RankPlan in bytes: its own fields, then those that all ranks
  // have in common. Of MakeShares.
  IdVector<RankId, std::string> shares{};
  std::string common_share{};
  Bytes size{};  // In memory, roughly. Of MakeShares.
};

// Serialises the shares of a plan that is complete, so that who answers a call
// has only bytes to hand on. 20,000 tasks take some 10 ms.
void MakeShares(ReadyPlan* plan);

// Plans one replica of a batch: from the cache if an equal one is there, else
// by a search that ends when the job's deadline or evaluations are used up or
// `stop` is requested. Statistics of time in the queue are the caller's to add.
// FailedPrecondition: nothing fits the memory limit. Internal: the independent
// check refused what was planned.
absl::StatusOr<ReadyPlan> MakeReadyPlan(const ServedJob& job,
                                        const StepBatch& batch, int32_t replica,
                                        int32_t threads,
                                        const std::stop_token& stop,
                                        planner::PlanCache* cache);

v1::GetPlanResponse WholePlan(const ReadyPlan& plan);

v1::StoredPlan ToStored(const ReadyPlan& plan);
// Checks the plan again.
absl::StatusOr<ReadyPlan> FromStored(const v1::StoredPlan& stored);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_CORE_READY_PLAN_H_
