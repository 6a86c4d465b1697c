// Lowers a Schedule to an ExecutionPlan: adds sends, receives, waits and frees
// around the schedule's tasks so that no set of ranks can deadlock.
//
// The schedule gives the order of transfers: on each pair of ranks, both sides
// list them by the producer's end (ties by edge id). So first-in first-out
// channels match, and even blocking sends cannot deadlock (the argument is in
// the source file). A Recv is posted as late as is possible without delaying
// its transfer: in the gap before the task that its rank runs when the producer
// ends. Its buffer is freed right after the consumer. A send is waited for as
// soon as its transfer is over in the schedule's times: right after the task
// during which it ends, or before the task that begins after a pause in which
// it ends. Sends still under way when the last task ends are waited for at the
// very end of the program, where the wait delays nothing.
//
// Where the receiver of a tensor has no room for it yet, the tensor can wait on
// the rank that made it (SendTime). The end of the task after which it is sent
// then takes the place of the producer's end above.
//
// Activations that wait on the host leave right after their forward task.
// Fetching them back begins early enough for the copies, one after another on
// one stream, to finish before the first task that needs them by the schedule's
// times; or later if the memory limit leaves no room for them in addition to
// the largest copy on its way out. A Compute waits for the copies it needs.
#ifndef PIPELOOM_PLANNER_LOWER_LOWER_PLAN_H_
#define PIPELOOM_PLANNER_LOWER_LOWER_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"
#include "planner/lower/host_copies.h"

namespace pipeloom::planner {

// When tensors are sent to other ranks.
enum class SendTime : uint8_t {
  kAtOnce,  // Right after the task that makes them.
  // Later, where the receiver's limit would be broken while they wait for their
  // consumer and the sender has room (planner/lower/late_sends.h). Plans with
  // host copies send at once.
  kWithRoom,
};

// Fills in graph, programs and predicted_step_time of a plan; the caller adds
// job, step, replica, schedule, bounds and FLOPs. Takes the graph by value into
// the plan: move it in if the caller does not need it afterwards.
//
// The result passes ValidateExecutionPlan, except that boundary tensors, which
// a schedule does not account for, may exceed a memory limit:
// compare PlanPeaks with the limits. Without contention, no task of the plan
// starts later than in the schedule. A copy that would come back at once,
// before any other task, is left out, as it would save nothing.
//
// Returns FailedPrecondition if the schedule does not fit the graph, and
// InvalidArgument for a host copy of a task that is not a forward task, of no
// bytes or more than the task keeps, of a task listed twice, or without a
// backward on its rank.
//
// Takes O(tasks + edges + E log E) for E edges between ranks, plus the number
// of copies times the number of tasks that run while a copy comes back.
absl::StatusOr<ExecutionPlan> LowerPlan(
    StageGraph graph, const Schedule& schedule,
    absl::Span<const HostCopy> host_copies = {},
    SendTime send_time = SendTime::kAtOnce);

// Returns the most bytes that each rank holds at once: static memory,
// activations, tensors received and not yet freed, tensors made for other ranks
// whose send has not been waited for, and tensors made for the rank itself
// whose consumer has not begun. REQUIRES: everything that the plan's
// instructions name exists in its graph (true of plans made by LowerPlan and of
// validated plans).
IdVector<RankId, Bytes> PlanPeaks(const ExecutionPlan& plan);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_LOWER_LOWER_PLAN_H_
