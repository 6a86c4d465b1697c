// Turns the graph of a search, in which every trained stage pair has a
// weight-gradient task, into that of a plan, in which only split pairs have
// one. A plan shows the form of a pair's passes by this.
#ifndef PIPELOOM_PLANNER_PASSES_DROP_FUSED_H_
#define PIPELOOM_PLANNER_PASSES_DROP_FUSED_H_

#include "absl/status/statusor.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

// The graph and the schedule of a plan.
struct PlanProblem {
  StageGraph graph{};
  Schedule schedule{};  // Has the same times as the schedule of the search.
  // Indexed by task of the search's graph: its task in `graph`; none if
  // dropped.
  IdVector<TaskId, TaskId> task_now{};
};

// Drops the weight-gradient tasks of pairs whose form in `memory` is fused; the
// others keep their order, and ids rise as before. REQUIRES: those tasks take
// no time, hold nothing and only follow their backward; the schedule is of the
// graph. O(tasks + edges).
absl::StatusOr<PlanProblem> DropFusedWeightGrads(
    StageGraph graph, const partition::StepMemory& memory, Schedule schedule);

// Returns the step without the weight-gradient tasks of pairs whose form in
// `memory` is fused: a graph for choices of the same pairs in these forms.
// `built` has everything kept. O(tasks + edges).
absl::StatusOr<partition::BuiltGraph> WithoutFusedWeightGrads(
    const partition::BuiltGraph& built, const partition::StepMemory& memory);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_PASSES_DROP_FUSED_H_
