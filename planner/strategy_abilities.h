// What some strategies can do beyond the interface of all; PlanStep asks.
#ifndef PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
#define PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/partition.h"
#include "ir/stage_graph.h"
#include "partition/memory_candidates.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Its searches start from what other strategies would run
// (planner/known_starts.h). For strategies that choose memory and split
// backwards.
class StartsFromOthers {
 public:
  virtual ~StartsFromOthers() = default;
  // As Strategy::MakeMemorySchedule, with an answer that is known for the
  // graph, under these limits or higher ones, and is to be beaten.
  virtual absl::StatusOr<MemorySchedule> MakeMemoryScheduleFrom(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& known, uint64_t seed,
      const SearchBudget& budget) const = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
