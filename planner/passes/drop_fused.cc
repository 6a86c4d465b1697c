#include "planner/passes/drop_fused.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"

namespace pipeloom::planner {
namespace {

// Indexed by task: whether it is the weight gradient of a fused pair.
IdVector<TaskId, bool> FusedWeightGrads(const StageGraph& graph,
                                        const partition::StepMemory& memory) {
  IdVector<TaskId, bool> fused(graph.num_tasks(), false);
  for (const StagePairId id : memory.pairs.ids()) {
    const TaskId weight_grad = memory.pairs[id].weight_grad;
    if (weight_grad.is_none() ||
        memory.form(id) != partition::PassForm::kFused) {
      continue;
    }
    PIPELOOM_CHECK(graph.outgoing(weight_grad).empty());
    fused[weight_grad] = true;
  }
  return fused;
}

// Returns the graph without these tasks, and fills in `task_now`.
absl::StatusOr<StageGraph> Drop(const StageGraph& graph,
                                const IdVector<TaskId, bool>& dropped,
                                IdVector<TaskId, TaskId>* task_now) {
  IdVector<TaskId, Task> tasks;
  tasks.reserve(graph.num_tasks());
  task_now->resize(graph.num_tasks());
  for (const TaskId t : graph.task_ids()) {
    if (!dropped[t]) (*task_now)[t] = tasks.push_back(graph.task(t));
  }
  IdVector<EdgeId, Dependency> edges;
  edges.reserve(graph.num_edges());
  for (Dependency edge : graph.edges()) {
    if (dropped[edge.to]) continue;
    edge.from = (*task_now)[edge.from];
    edge.to = (*task_now)[edge.to];
    edges.push_back(edge);
  }
  return StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                            std::move(tasks), std::move(edges));
}

bool Any(const IdVector<TaskId, bool>& dropped) {
  for (const TaskId t : dropped.ids()) {
    if (dropped[t]) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<PlanProblem> DropFusedWeightGrads(
    StageGraph graph, const partition::StepMemory& memory, Schedule schedule) {
  PlanProblem problem;
  const IdVector<TaskId, bool> dropped = FusedWeightGrads(graph, memory);
  if (!Any(dropped)) {
    problem.task_now.resize(graph.num_tasks());
    for (const TaskId t : graph.task_ids()) problem.task_now[t] = t;
    problem.graph = std::move(graph);
    problem.schedule = std::move(schedule);
    return problem;
  }
  IdVector<TaskId, SimTime> start;
  start.reserve(graph.num_tasks());
  for (const TaskId t : graph.task_ids()) {
    if (dropped[t]) {
      const Task& task = graph.task(t);
      PIPELOOM_CHECK(task.duration == kZero && task.alloc == Bytes(0) &&
                     task.free == Bytes(0));
    } else {
      start.push_back(schedule.start[t]);
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(problem.graph,
                            Drop(graph, dropped, &problem.task_now));
  for (std::vector<TaskId>& order : schedule.order) {
    std::erase_if(order, [&](TaskId t) { return dropped[t]; });
    for (TaskId& t : order) t = problem.task_now[t];
  }
  schedule.start = std::move(start);
  problem.schedule = std::move(schedule);
  return problem;
}

absl::StatusOr<partition::BuiltGraph> WithoutFusedWeightGrads(
    const partition::BuiltGraph& built, const partition::StepMemory& memory) {
  const IdVector<TaskId, bool> dropped = FusedWeightGrads(built.graph, memory);
  IdVector<TaskId, TaskId> now;
  partition::BuiltGraph left{.model_flops = built.model_flops,
                             .pairs = built.pairs,
                             .update = built.update};
  PIPELOOM_ASSIGN_OR_RETURN(left.graph, Drop(built.graph, dropped, &now));
  // Edges to dropped tasks are gone, so the others have new ids.
  IdVector<EdgeId, EdgeId> edge_now(built.graph.num_edges());
  int32_t edges = 0;
  for (const EdgeId e : edge_now.ids()) {
    if (!dropped[built.graph.edges()[e].to]) edge_now[e] = EdgeId(edges++);
  }
  for (partition::StagePair& pair : left.pairs) {
    pair.forward = now[pair.forward];
    if (pair.backward.is_none()) continue;
    pair.backward = now[pair.backward];
    pair.edge = edge_now[pair.edge];
    if (!pair.weight_grad.is_none()) {
      pair.weight_grad =
          dropped[pair.weight_grad] ? TaskId() : now[pair.weight_grad];
    }
  }
  // Fused backwards take other times and bytes.
  partition::StepMemory kept = memory;
  kept.pairs = left.pairs;
  PIPELOOM_ASSIGN_OR_RETURN(
      left.graph,
      partition::ApplyMemory(left.graph, kept, kept.KeepEverything()));
  return left;
}

}  // namespace pipeloom::planner
