#include "planner/step/paired_search.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/search/search_graph.h"

namespace pipeloom::planner {

namespace {

// Numbers tasks in an order along the edges, the smallest id first. Indexed by
// task; none for tasks of a cycle.
IdVector<TaskId, TaskId> NumberAlong(
    int32_t num_tasks, const IdVector<EdgeId, Dependency>& edges) {
  IdVector<TaskId, std::vector<TaskId>> successors(num_tasks);
  IdVector<TaskId, int32_t> missing(num_tasks);
  for (const Dependency& edge : edges) {
    successors[edge.from].push_back(edge.to);
    ++missing[edge.to];
  }
  std::priority_queue<TaskId, std::vector<TaskId>, std::greater<>> ready;
  for (const TaskId t : missing.ids()) {
    if (missing[t] == 0) ready.push(t);
  }
  IdVector<TaskId, TaskId> number(num_tasks);
  for (int32_t next = 0; !ready.empty(); ++next) {
    const TaskId t = ready.top();
    ready.pop();
    number[t] = TaskId(next);
    for (const TaskId successor : successors[t]) {
      if (--missing[successor] == 0) ready.push(successor);
    }
  }
  return number;
}

RankOrders Renumbered(RankOrders orders,
                      const IdVector<TaskId, TaskId>& number) {
  for (std::vector<TaskId>& order : orders) {
    for (TaskId& t : order) t = number[t];
  }
  return orders;
}

}  // namespace

absl::StatusOr<ConstrainedGraph> ConstrainByPairs(
    const StageGraph& graph, const partition::StepMemory& memory,
    const std::vector<PairedPass>& pairs) {
  IdVector<TaskId, TaskId> own_backward(graph.num_tasks());
  for (const partition::StagePair& pair : memory.pairs) {
    if (!pair.weight_grad.is_none()) {
      own_backward[pair.weight_grad] = pair.backward;
    }
  }
  IdVector<EdgeId, Dependency> edges = graph.edges();
  for (const PairedPass& pair : pairs) {
    edges.push_back(
        {.from = own_backward[pair.weight_grad], .to = pair.backward});
    edges.push_back({.from = pair.backward, .to = pair.weight_grad});
  }
  ConstrainedGraph constrained;
  constrained.now = NumberAlong(graph.num_tasks(), edges);
  constrained.original.resize(graph.num_tasks());
  IdVector<TaskId, Task> tasks(graph.num_tasks());
  for (const TaskId t : graph.task_ids()) {
    const TaskId now = constrained.now[t];
    if (now.is_none()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the pairs leave no order: task ", t.value(), " waits for itself"));
    }
    constrained.original[now] = t;
    tasks[now] = graph.task(t);
  }
  for (Dependency& edge : edges) {
    edge.from = constrained.now[edge.from];
    edge.to = constrained.now[edge.to];
  }
  for (const PairedPass& pair : pairs) {
    tasks[constrained.now[pair.weight_grad]].duration = pair.rest;
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      constrained.graph,
      StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                         std::move(tasks), std::move(edges)));
  return constrained;
}

absl::Status SearchPaired(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const partition::StepMemory& memory,
                          const SearchBudget& budget, Candidate* best,
                          int64_t* evaluations) {
  if (best->made.pairs.empty() || budget.max_evaluations < 1) {
    return absl::OkStatus();
  }
  // The margin, unless the order to go on from does not leave it.
  IdVector<RankId, RankSpec> limits = WithMargin(built.graph, best->limits);
  for (const RankId r : limits.ids()) {
    Bytes& limit = limits[r].memory.limit;
    if (limit > Bytes(0)) {
      limit = std::max(limit, best->made.found.schedule.peak[r]);
    }
  }
  partition::StepMemory with_forms = memory;
  with_forms.SetForms(best->made.forms);
  PIPELOOM_ASSIGN_OR_RETURN(
      const StageGraph chosen,
      partition::ApplyMemory(built.graph.WithRanks(limits), with_forms,
                             best->made.selection));
  PIPELOOM_ASSIGN_OR_RETURN(
      const ConstrainedGraph constrained,
      ConstrainByPairs(chosen, with_forms, best->made.pairs));
  // The bound holds for steps with pairs too, and computing one that sees
  // memory takes as long as many evaluations.
  GraphSearch search(constrained.graph, input.seed,
                     NamedBound{best->made.found.lower_bound.count(),
                                best->made.found.bound_source});
  absl::StatusOr<SearchResult> found = search.Run(
      budget, Renumbered(best->made.found.schedule.order, constrained.now));
  if (!found.ok()) {
    // Nothing fits with the margin, or the pairs allow no order.
    return absl::IsResourceExhausted(found.status()) ? absl::OkStatus()
                                                     : found.status();
  }
  *evaluations += std::max<int64_t>(1, found->evaluations);
  if (found->schedule.step_time() >= best->made.found.schedule.step_time()) {
    return absl::OkStatus();
  }
  MemorySchedule next = best->made;
  next.search.reset();  // It is for the step without pairs.
  PIPELOOM_ASSIGN_OR_RETURN(const StageGraph paired,
                            ApplyPairs(chosen, next.pairs));
  PIPELOOM_ASSIGN_OR_RETURN(
      next.found.schedule,
      TimeSchedule(paired, Renumbered(std::move(found->schedule.order),
                                      constrained.original)));
  PIPELOOM_ASSIGN_OR_RETURN(
      std::optional<Candidate> candidate,
      MakeCandidate(job, input, built, memory, std::move(next), limits));
  if (candidate.has_value() &&
      candidate->predicted.finish < best->predicted.finish) {
    candidate->limits = best->limits;
    *best = *std::move(candidate);
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::planner
