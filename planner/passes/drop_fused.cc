#include "planner/passes/drop_fused.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace pipeloom::planner {

absl::StatusOr<PlanProblem> DropFusedWeightGrads(
    StageGraph graph, const partition::StepMemory& memory, Schedule schedule) {
  PlanProblem problem;
  IdVector<TaskId, bool> dropped(graph.num_tasks(), false);
  bool any = false;
  for (const StagePairId id : memory.pairs.ids()) {
    const TaskId weight_grad = memory.pairs[id].weight_grad;
    if (weight_grad.is_none() ||
        memory.form(id) != partition::PassForm::kFused) {
      continue;
    }
    const Task& task = graph.task(weight_grad);
    PIPELOOM_CHECK(task.duration == kZero && task.alloc == Bytes(0) &&
                   task.free == Bytes(0) &&
                   graph.outgoing(weight_grad).empty());
    dropped[weight_grad] = true;
    any = true;
  }
  problem.task_now.resize(graph.num_tasks());
  if (!any) {
    for (const TaskId t : graph.task_ids()) problem.task_now[t] = t;
    problem.graph = std::move(graph);
    problem.schedule = std::move(schedule);
    return problem;
  }
  IdVector<TaskId, Task> tasks;
  IdVector<TaskId, SimTime> start;
  tasks.reserve(graph.num_tasks());
  start.reserve(graph.num_tasks());
  for (const TaskId t : graph.task_ids()) {
    if (dropped[t]) continue;
    problem.task_now[t] = tasks.push_back(graph.task(t));
    start.push_back(schedule.start[t]);
  }
  IdVector<EdgeId, Dependency> edges;
  edges.reserve(graph.num_edges());
  for (Dependency edge : graph.edges()) {
    if (dropped[edge.to]) continue;
    edge.from = problem.task_now[edge.from];
    edge.to = problem.task_now[edge.to];
    edges.push_back(edge);
  }
  for (std::vector<TaskId>& order : schedule.order) {
    std::erase_if(order, [&](TaskId t) { return dropped[t]; });
    for (TaskId& t : order) t = problem.task_now[t];
  }
  schedule.start = std::move(start);
  problem.schedule = std::move(schedule);
  PIPELOOM_ASSIGN_OR_RETURN(
      problem.graph,
      StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                         std::move(tasks), std::move(edges)));
  return problem;
}

}  // namespace pipeloom::planner
