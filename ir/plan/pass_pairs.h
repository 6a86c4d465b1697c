// Pairs of passes: a forward and a backward of two microbatches that a rank
// runs together on two streams, so that the communication of one overlaps with
// the compute of the other.
//
//     rank 0:  F4 ---- F5+B1 ---- F6+B2 ---- ...
//
// In a StageGraph the pass with the larger id is the first of the pair, and the
// second has it as Task::overlaps:
//
// - The second follows the first directly in the order of their rank.
// - The first starts when the inputs of both are there. Both start together.
// - The first lasts as long as both together, the second 0: both end together,
//   and neither output leaves before.
// - While the first lasts, it also holds what the second takes when it starts
//   and what it makes for other tasks. It gives that back when it ends; the
//   second then takes it again.
//
// As every dependency goes from a smaller to a larger id, the tasks that the
// second depends on have smaller ids than the first, too.
#ifndef PIPELOOM_IR_PLAN_PASS_PAIRS_H_
#define PIPELOOM_IR_PLAN_PASS_PAIRS_H_

#include "ir/ids.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom {

// Returns whether `task` is the second pass of a pair.
inline bool IsSecondOfPair(const Task& task) {
  return !task.overlaps.is_none() && task.pass != Pass::kWeightGrad;
}

// Returns, indexed by task, the second pass of the pair of which the task is
// the first; none for all others. Empty if the graph has no pairs. O(tasks).
inline IdVector<TaskId, TaskId> SecondsOfPairs(const StageGraph& graph) {
  IdVector<TaskId, TaskId> seconds;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (!IsSecondOfPair(task)) continue;
    if (seconds.empty()) seconds.resize(graph.num_tasks());
    seconds[task.overlaps] = t;
  }
  return seconds;
}

}  // namespace pipeloom

#endif  // PIPELOOM_IR_PLAN_PASS_PAIRS_H_
