#include "service/jobs/shared_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/cluster/meeting_replicas.h"
#include "partition/batching/batch_split.h"
#include "planner/job/common_order.h"

namespace pipeloom::service {
namespace {

// Checks that the replicas' order can be found: the work of all is known.
absl::Status CheckOrderCanBeShared(const ServedJob& job,
                                   const StepBatch& batch) {
  if (batch.replica < 0 && !PlansAnew(job, batch)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%d replicas meet within passes (parallel.ep over replicas, ZeRO-2 or "
      "-3) "
      "and need one order of passes, which takes the work of all: %s",
      emulator::ReplicasThatMeet(job.spec()),
      batch.replica >= 0
          ? absl::StrFormat("replica is %d; send the whole batch of step %d, "
                            "without replica",
                            batch.replica, batch.step)
          : "open the job without defer_surplus"));
}

// A step in whose place one is searched whose order several replicas share:
// that of the first of them.
struct SharedStep {
  int32_t replica = 0;
  Microbatches microbatches{};
  PlanCacheKey key{};
};
absl::StatusOr<SharedStep> SharedStepOf(const ServedJob& job,
                                        const StepBatch& batch,
                                        int32_t replica) {
  const int32_t meet = emulator::ReplicasThatMeet(job.spec());
  SharedStep shared{.replica = replica / meet * meet};
  PIPELOOM_ASSIGN_OR_RETURN(
      shared.microbatches,
      partition::SplitMicrobatches(job.spec(), batch.packed, shared.replica,
                                   job.partition()));
  // The order depends on the work of all that share it.
  shared.key = MakePlanCacheKey(
      FingerprintBuilder()
          .Add("common order")
          .Add(batch.epoch->context)
          .Build(),
      FingerprintBuilder().Add(batch.content).Add(shared.replica).Build(),
      shared.microbatches);
  return shared;
}

// Checks that replicas that meet have as much work for it.
absl::Status CheckLikeWork(const ServedJob& job, const StepBatch& batch,
                           int32_t first) {
  const int32_t meet = emulator::ReplicasThatMeet(job.spec());
  std::vector<Microbatches> replicas;
  const auto all = static_cast<int32_t>(batch.packed.packed.size());
  for (int32_t r = first; r < std::min(first + meet, all); ++r) {
    PIPELOOM_ASSIGN_OR_RETURN(
        replicas.emplace_back(),
        partition::SplitMicrobatches(job.spec(), batch.packed, r,
                                     job.partition()));
  }
  const auto unlike = emulator::FindUnlikeWork(job.spec(), replicas);
  if (!unlike.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "microbatch %d has %d parts for module \"%s\" in replica %d and %d in "
      "replica %d; these meet within its passes (parallel.ep over replicas, "
      "ZeRO-2 or -3) and would wait for ever: give each as many, such as a "
      "blank "
      "image that counts in no loss",
      unlike->microbatch.value(), unlike->parts,
      job.spec().model.modules[unlike->module].name, first + unlike->replica,
      unlike->first_parts, first));
}

// Evaluations of a search for an order that replicas share, unless the job says
// how many. Each replica, also after a restart, has to find the same order, so
// the search does not end by time. Not tuned on any job.
constexpr int64_t kOrderEvaluations = 100;

}  // namespace

bool SharesOrder(const StepBatch& batch) {
  return planner::NeedsCommonOrder(batch.epoch->planner->prepared());
}

Fingerprint SharedOrderOf(const ServedJob& job, const StepBatch& batch,
                          int32_t replica) {
  const absl::StatusOr<SharedStep> shared = SharedStepOf(job, batch, replica);
  return shared.ok() ? shared->key.exact : Fingerprint();
}

absl::StatusOr<PlanInSharedOrder> FindInSharedOrder(const ServedJob& job,
                                                    const StepBatch& batch,
                                                    planner::PlanInput input,
                                                    PlanCache* cache) {
  PIPELOOM_RETURN_IF_ERROR(CheckOrderCanBeShared(job, batch));
  const planner::PreparedJob& prepared = batch.epoch->planner->prepared();
  const int64_t evaluations = job.spec().search.evaluations;
  input.budget.max_evaluations =
      evaluations > 0 ? evaluations : kOrderEvaluations;
  PIPELOOM_ASSIGN_OR_RETURN(const SharedStep shared,
                            SharedStepOf(job, batch, input.replica));
  PlanCache::Found known = cache->Find(shared.key, shared.microbatches);
  PlanInSharedOrder found{.order_was_known = known.equal != nullptr};
  if (known.equal == nullptr) {
    PIPELOOM_RETURN_IF_ERROR(CheckLikeWork(job, batch, shared.replica));
    planner::PlanInput first = input;
    first.replica = shared.replica;
    PIPELOOM_ASSIGN_OR_RETURN(const planner::CommonOrder order,
                              planner::CommonOrder::Search(prepared, first));
    known.equal = order.searched();
    cache->Insert(shared.key, known.equal, SearchEnd::kFull);
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      found.plan,
      planner::CommonOrder(prepared, std::move(known.equal)).Plan(input));
  return found;
}

}  // namespace pipeloom::service
