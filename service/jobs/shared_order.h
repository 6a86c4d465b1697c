// Plans of replicas that meet within passes, in one order of passes
// (planner/job/common_order.h). Each replica is planned by a call of its own,
// maybe after a restart, and has to find the same order; so it is searched with
// a number of evaluations, not until a time.
#ifndef PIPELOOM_SERVICE_JOBS_SHARED_ORDER_H_
#define PIPELOOM_SERVICE_JOBS_SHARED_ORDER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "planner/step/plan_step.h"
#include "service/jobs/served_job.h"
#include "service/jobs/step_batch.h"
#include "service/plans/plan_cache.h"

namespace pipeloom::service {

// Returns whether the step's replicas are planned in one order.
bool SharesOrder(const StepBatch& batch);

// Returns a fingerprint of all that the search of the replica's order depends
// on; zeros if there can be none. O(instances).
Fingerprint SharedOrderOf(const ServedJob& job, const StepBatch& batch,
                          int32_t replica);

// A replica's plan, and whether its order was in the cache.
struct PlanInSharedOrder {
  planner::PlanResult plan{};
  bool order_was_known = false;
};

// Plans input.replica in the order that it shares; searches that if it is not
// in the cache. input.budget has threads and workers only. FailedPrecondition:
// the batch has one replica's work alone, each step is planned anew
// (ServedJob::defer_surplus), a replica lacks work for a module in whose passes
// it meets others, or nothing fits the memory limit.
absl::StatusOr<PlanInSharedOrder> FindInSharedOrder(const ServedJob& job,
                                                    const StepBatch& batch,
                                                    planner::PlanInput input,
                                                    PlanCache* cache);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_JOBS_SHARED_ORDER_H_
