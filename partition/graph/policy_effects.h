// Memory policy x stage pairs -> what each pair's choice changes.
#ifndef PIPELOOM_PARTITION_GRAPH_POLICY_EFFECTS_H_
#define PIPELOOM_PARTITION_GRAPH_POLICY_EFFECTS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fingerprint.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::partition {

// The slots of all stages of a partition. Stages of one slot have equal costs
// on one shape (emulator::StageRow); slots of all modules are numbered
// together.
struct StageSlots {
  IdVector<StageId, int32_t> slot_of{};
  // Says all that a slot's costs depend on. Indexed by slot.
  std::vector<Fingerprint> prints{};
};

// The effects of a policy's choices on the stage pairs of a step. Effects of
// equal stages on equal shapes are made once, and shared with other steps
// (StageCostModel::Derived).
class PolicyEffects {
 public:
  // `pairs` and `tasks`: of the graph with everything kept. InvalidArgument:
  // a pair's copies to the host would take longer than its passes.
  // O(pairs) in addition to effects that are made.
  static absl::StatusOr<PolicyEffects> Create(
      const emulator::StageCostModel& costs, const Partition& partition,
      const Microbatches& microbatches, const StageSlots& slots,
      const MemoryPolicy& policy, const IdVector<StagePairId, StagePair>& pairs,
      const IdVector<TaskId, Task>& tasks);

  // Null for pairs without a backward.
  const IdVector<StagePairId, const MemoryEffect*>& of_pair() const {
    return of_pair_;
  }

 private:
  PolicyEffects() = default;

  std::vector<std::shared_ptr<const void>> owned_{};
  IdVector<StagePairId, const MemoryEffect*> of_pair_{};
};

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_GRAPH_POLICY_EFFECTS_H_
