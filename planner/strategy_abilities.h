// Abilities of some strategies beyond the interface of all, which PlanStep asks
// for.
#ifndef PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
#define PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/strategy.h"

namespace pipeloom::planner {

struct PlanInput;    // planner/step/step_types.h
struct PlanResult;   // planner/step/step_types.h
struct PreparedJob;  // planner/step/step_types.h

// The ability to plan steps as a whole, instead of ordering the tasks of a
// given graph.
class PlansWholeSteps {
 public:
  virtual ~PlansWholeSteps() = default;
  // Returns whether it can plan with the partition.
  virtual bool Accepts(const Partition& partition,
                       const JobSpec& job) const = 0;
  // Does what PlanStep does.
  virtual absl::StatusOr<PlanResult> PlanWholeStep(
      const PreparedJob& job, const PlanInput& input) const = 0;
};

// The ability to find other schedules with other seeds.
class SearchesBySeed {
 public:
  virtual ~SearchesBySeed() = default;
  // Returns whether it does so with its options.
  virtual bool searches() const = 0;
};

// A step as a similar one was planned.
struct LentStep {
  std::vector<double> times{};  // Indexed by task: when it starts, in any unit.
  partition::MemorySelection selection{};
};

// The ability to start searches from the schedules of other strategies, and to
// return their plans where they are faster. For strategies that choose memory
// and split backwards.
class StartsFromOthers {
 public:
  virtual ~StartsFromOthers() = default;
  // Makes a strategy whose schedule is the best start that others give, for one
  // step. `segments` is the budget of the search for orders of segments in it;
  // `lent` is the step as similar ones were planned, the most similar first.
  virtual std::unique_ptr<Strategy> Starts(
      SearchBudget segments, std::vector<LentStep> lent) const = 0;
  // Makes one strategy for each order that others have on a given partition;
  // those that are most often the fastest come first.
  virtual std::vector<std::unique_ptr<Strategy>> Rivals() const = 0;
  // Makes those of these that take little time and are most often the fastest
  // on such a partition.
  virtual std::vector<std::unique_ptr<Strategy>> QuickRivals(
      const Partition& partition) const = 0;
  // Makes those that may be the fastest where a rank has room for few
  // microbatches and no quick one is made for such steps.
  virtual std::vector<std::unique_ptr<Strategy>> TightRivals(
      const Partition& partition) const = 0;
  // Does the same as Strategy::MakeMemorySchedule, given an answer to beat:
  // `known`, for the graph under these limits or higher ones.
  virtual absl::StatusOr<MemorySchedule> MakeMemoryScheduleFrom(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& known, uint64_t seed,
      const SearchBudget& budget) const = 0;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGY_ABILITIES_H_
