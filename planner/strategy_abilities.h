// What some strategies can do beyond the interface of all; PlanStep asks.
#ifndef PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
#define PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job_spec.h"
#include "ir/partition.h"
#include "ir/stage_graph.h"
#include "partition/memory_candidates.h"
#include "planner/memory_choices.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

// Its searches start from what other strategies would run
// (planner/known_starts.h), and its graphs have a fused backward where that is
// better under the limit. For strategies that choose memory.
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

// It says itself which stages are recomputed, each choice for a whole step,
// where others have all of MemoryChoices and the fastest is taken.
class SetsRecomputation {
 public:
  virtual ~SetsRecomputation() = default;
  virtual std::vector<RecomputeChoice> RecomputeChoices(
      const JobSpec& job, const Partition& partition) const = 0;
  // Not the fastest of the choices but the first that fits.
  virtual bool takes_first_that_fits(const Partition& partition) const = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
