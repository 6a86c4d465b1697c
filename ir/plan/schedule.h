// An answer to a StageGraph: in which order each rank runs its tasks, and the
// times that follow from it.
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

struct Schedule {
  RankOrders order{};
  IdVector<TaskId, SimTime> start{};
  // The last task's end; the step's, with each rank's epilogue.
  SimTime tasks_finish{};
  SimTime finish{};
  IdVector<RankId, Bytes> peak{};
  bool operator==(const Schedule&) const = default;

  Duration makespan() const { return tasks_finish - kStepStart; }
  Duration step_time() const { return finish - kStepStart; }
};

// Times of the given orders, each task as early as it can be, and the memory
// peaks. Memory limits are not enforced. FailedPrecondition names a task that
// is missing, twice or on the wrong rank, or two ranks whose orders contradict
// the dependencies. O(tasks + dependencies).
absl::StatusOr<Schedule> TimeSchedule(const StageGraph& graph,
                                      RankOrders order);

// Checks everything again, sharing no code with TimeSchedule or any search:
// every task once and on its rank, no two overlap on a rank, dependencies and
// delays hold, `finish`, `tasks_finish` and `peak` are what the starts imply,
// and memory stays within limits. FailedPrecondition names the first
// violation. Starts later than necessary are legal.
absl::Status ValidateSchedule(const StageGraph& graph,
                              const Schedule& schedule);

// Share of rank time in which compute streams are idle: what is left of ranks x
// step time beside tasks and epilogues. 0 for an empty graph.
double BubbleRatio(const StageGraph& graph, Duration step_time);
// Share of rank time that the ranks' epilogues take.
double EpilogueRatio(const StageGraph& graph, Duration step_time);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_SCHEDULE_H_
