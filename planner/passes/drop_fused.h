// From the graph of a search, in which every trained stage pair has a
// weight-gradient task, to that of a plan, in which only split pairs have one:
// a plan says by this which form a pair's passes have.
#ifndef PIPELOOM_PLANNER_PASSES_DROP_FUSED_H_
#define PIPELOOM_PLANNER_PASSES_DROP_FUSED_H_

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

struct PlanProblem {
  StageGraph graph{};
  Schedule schedule{};  // The same times.
  // By task of the graph given: what it is now; none: dropped.
  IdVector<TaskId, TaskId> task_now{};
};

// Drops the weight-gradient tasks of pairs whose form in `memory` is fused; the
// others keep their order, and ids rise as before. REQUIRES: those tasks take
// no time, hold nothing and only follow their backward; the schedule is of the
// graph. O(tasks + edges).
absl::StatusOr<PlanProblem> DropFusedWeightGrads(
    StageGraph graph, const partition::StepMemory& memory, Schedule schedule);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PASSES_DROP_FUSED_H_
