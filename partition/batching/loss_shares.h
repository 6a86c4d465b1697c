// Divisors of losses, for the plan: see LossShare in ir/plan/execution_plan.h.
#ifndef PIPELOOM_PARTITION_BATCHING_LOSS_SHARES_H_
#define PIPELOOM_PARTITION_BATCHING_LOSS_SHARES_H_

#include "ir/job/model_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/microbatches.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {

// Sets the loss_shares and loss_totals of the plan, for modules with a loss:
// those with a loss head, and those that feed no module with work in the step.
// The shares of all replicas add up to the totals. O(sub-microbatches).
void SetLoss(const ModelSpec& model, const PackedStep& step,
             const Microbatches& microbatches, ExecutionPlan* plan);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_LOSS_SHARES_H_
