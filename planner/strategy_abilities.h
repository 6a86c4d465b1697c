// What some strategies can do beyond the interface of all; PlanStep asks.
#ifndef PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
#define PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Its searches start from what other strategies would run, and it hands out
// their plans where they are faster. For strategies that choose memory and
// split backwards.
class StartsFromOthers {
 public:
  virtual ~StartsFromOthers() = default;
  // A strategy whose schedule is the best of what others begin with; `dip`: the
  // budget for DIP's part in it. For one step.
  virtual std::unique_ptr<Strategy> Starts(SearchBudget dip) const = 0;
  // One strategy for each order that others have on a given partition, those
  // first that are fastest most often.
  virtual std::vector<std::unique_ptr<Strategy>> Rivals() const = 0;
  // As Strategy::MakeMemorySchedule, with an answer that is known for the
  // graph, under these limits or higher ones, and is to be beaten.
  virtual absl::StatusOr<MemorySchedule> MakeMemoryScheduleFrom(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& known, uint64_t seed,
      const SearchBudget& budget) const = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
