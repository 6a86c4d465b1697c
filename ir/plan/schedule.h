// A schedule of a StageGraph: the order in which each rank runs its tasks, and
// the times that follow from it.
#ifndef PIPELOOM_IR_PLAN_SCHEDULE_H_
#define PIPELOOM_IR_PLAN_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom {

using RankOrders = IdVector<RankId, std::vector<TaskId>>;

// The order and the times of all tasks of a step.
struct Schedule {
  RankOrders order{};
  IdVector<TaskId, SimTime> start{};
  // tasks_finish is the end of the last task, finish that of the step, after
  // the epilogue of each rank.
  SimTime tasks_finish{};
  SimTime finish{};
  IdVector<RankId, Bytes> peak{};
  bool operator==(const Schedule&) const = default;

  Duration makespan() const { return tasks_finish - kStepStart; }
  Duration step_time() const { return finish - kStepStart; }
};

// Times the given orders, each task as early as possible, and computes the
// memory peaks. Does not enforce memory limits. FailedPrecondition names a task
// that is missing, listed twice or on the wrong rank, or two ranks whose orders
// contradict the dependencies. O(tasks + dependencies).
absl::StatusOr<Schedule> TimeSchedule(const StageGraph& graph,
                                      RankOrders order);

// Checks a schedule, sharing no code with TimeSchedule or any search: every
// task runs once and on its rank, no two overlap on a rank, dependencies and
// delays hold, `finish`, `tasks_finish` and `peak` are what the starts imply,
// and memory stays within limits. FailedPrecondition names the first violation.
// Starts later than necessary are legal.
absl::Status ValidateSchedule(const StageGraph& graph,
                              const Schedule& schedule);

// Returns the share of rank time in which ranks are idle: ranks x step time
// less tasks and epilogues. 0 for an empty graph.
double BubbleRatio(const StageGraph& graph, Duration step_time);
// Returns the share of rank time that the ranks' epilogues take.
double EpilogueRatio(const StageGraph& graph, Duration step_time);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_SCHEDULE_H_
