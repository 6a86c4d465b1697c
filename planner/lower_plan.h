// Schedule -> ExecutionPlan: sends, receives, waits and frees around the
// schedule's tasks, so that no set of ranks can wait on itself.
//
// Transfers are ordered by the schedule: on each pair of ranks, both sides
// list them by the producer's end (ties by edge id), so first-in first-out
// channels match and even blocking sends cannot deadlock (argument in the
// source). A Recv is posted as late as it can be without delaying its
// transfer, so that its buffer is not held for longer than needed.
#ifndef PIPELOOM_PLANNER_LOWER_PLAN_H_
#define PIPELOOM_PLANNER_LOWER_PLAN_H_

#include "absl/status/statusor.h"
#include "ir/execution_plan.h"
#include "ir/schedule.h"
#include "ir/stage_graph.h"

namespace pipeloom::planner {

// Fills in graph, programs and predicted_step_time of a plan; the caller adds
// job, step, replica, schedule, bounds and FLOPs. The result passes
// ValidateExecutionPlan, except that received tensors may exceed a memory
// limit which the schedule alone keeps: then ResourceExhausted names the rank
// and the bytes over. FailedPrecondition: the schedule does not fit the graph.
// O((tasks + edges) log edges).
absl::StatusOr<ExecutionPlan> LowerPlan(const StageGraph& graph,
                                        const Schedule& schedule);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LOWER_PLAN_H_
