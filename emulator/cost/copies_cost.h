// Collectives over GPUs of which some hold copies in one rank: modules whose
// tensor parallelism is smaller than the rank's (JobSpec::module_parallelism).
#ifndef PIPELOOM_EMULATOR_COST_COPIES_COST_H_
#define PIPELOOM_EMULATOR_COST_COPIES_COST_H_

#include <algorithm>
#include <cstdint>

#include "emulator/ops/op_cost.h"
#include "emulator/ops/op_graph.h"

namespace pipeloom::emulator {

// Prices a collective over all op.size GPUs with equal weights: first over the
// copies inside the tensor-parallel group of the job, then beyond it for each
// copy's part.
inline Duration OverReplicas(const OpCostModel& costs, const CollectiveOp& op,
                             int32_t tensor_copies) {
  if (tensor_copies == 1) return costs.Cost(op);
  CollectiveOp inside = op;
  inside.group = GroupKind::kTensor;
  inside.size = tensor_copies;
  CollectiveOp beyond = op;
  beyond.size = std::max<int64_t>(op.size / tensor_copies, 1);
  beyond.bytes = op.bytes / tensor_copies;
  return costs.Cost(inside) + costs.Cost(beyond);
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_COPIES_COST_H_
