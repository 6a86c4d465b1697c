// Schedule -> ExecutionPlan: sends, receives, waits and frees around the
// schedule's tasks, so that no set of ranks can wait on itself.
//
// Transfers are ordered by the schedule: on each pair of ranks, both sides
// list them by the producer's end (ties by edge id), so first-in first-out
// channels match and even blocking sends cannot deadlock (argument in the
// source). A Recv is posted as late as it can be without delaying its
// transfer: in the gap before the task that its rank runs when the producer
// ends. Its buffer is given back right after the consumer. A send is waited for
// as soon as the transfer is over in the schedule's times: right after the task
// during which it ends, or before the task that begins after a pause in which
// it ends. What is under way when the last task ends is waited for at the very
// end of the program, where nothing is delayed by it.
//
// Activations that wait on the host leave right after their forward task. They
// come back as many tasks before the first that needs them as the copies take
// in the schedule's times, one after another on one stream, or as many as the
// memory limit has room for beside the largest copy that is on its way out. A
// Compute waits for the copies it needs.
#ifndef PIPELOOM_PLANNER_STEP_LOWER_PLAN_H_
#define PIPELOOM_PLANNER_STEP_LOWER_PLAN_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::planner {

// Activations of a forward task that wait on the host until its backward: part
// of what the task keeps (Task::alloc).
struct HostCopy {
  TaskId task{};
  Bytes payload{};
  // Each way. 0: not known; then it comes back one task early.
  Duration time{};
  bool operator==(const HostCopy&) const = default;
};

// Fills in graph, programs and predicted_step_time of a plan; the caller adds
// job, step, replica, schedule, bounds and FLOPs. The result passes
// ValidateExecutionPlan, except that sent and received tensors, which a
// schedule does not see, may exceed a memory limit: compare PlanPeaks with the
// limits.
// Carried out without contention, no task starts later than in the schedule.
// A copy that would come back at once, before any other task, is left out: it
// would save nothing.
// The graph becomes the plan's: hand it over where it is not needed any more.
// FailedPrecondition: the schedule does not fit the graph.
// InvalidArgument: a host copy of what is no forward task, of none of its
// bytes or more than it keeps, twice, or without a backward on its rank.
// O(tasks + edges + E log E), E the edges between ranks, besides copies times
// the tasks that run while they come back.
absl::StatusOr<ExecutionPlan> LowerPlan(
    StageGraph graph, const Schedule& schedule,
    absl::Span<const HostCopy> host_copies = {});

// The most that each rank holds at once: static memory, activations, tensors
// received and not yet freed, and tensors made for other ranks whose send has
// not been waited for. REQUIRES: what the plan's instructions
// name exists in its graph (plans of LowerPlan; checked plans).
IdVector<RankId, Bytes> PlanPeaks(const ExecutionPlan& plan);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_LOWER_PLAN_H_
