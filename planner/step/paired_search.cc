#include "planner/step/paired_search.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/plan/pass_pairs.h"
#include "planner/passes/pair_forwards.h"
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

// For each weight gradient that takes no time besides that of a backward: this
// backward. None for all other tasks.
IdVector<TaskId, TaskId> DoneWith(const StageGraph& graph,
                                  const partition::StepMemory& memory,
                                  const std::vector<PairedPass>& pairs) {
  IdVector<TaskId, TaskId> with(graph.num_tasks());
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (!pair.weight_grad.is_none() &&
        memory.form(id) == partition::PassForm::kFused) {
      with[pair.weight_grad] = pair.backward;
    }
  }
  for (const PairedPass& pair : pairs) {
    if (pair.rest == kZero) with[pair.weight_grad] = pair.backward;
  }
  return with;
}

}  // namespace

absl::StatusOr<ConstrainedGraph> ConstrainByPairs(
    const StageGraph& unpaired, const partition::StepMemory& memory,
    const std::vector<PairedPass>& pairs,
    const std::vector<ForwardPair>& forward_pairs) {
  PIPELOOM_ASSIGN_OR_RETURN(const StageGraph graph,
                            ApplyForwardPairs(unpaired, forward_pairs));
  // Indexed by task: the one of its pair that stands for both.
  IdVector<TaskId, TaskId> first(graph.num_tasks());
  for (const ForwardPair& pair : forward_pairs) first[pair.second] = pair.first;
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
  for (Dependency& edge : edges) {
    if (!first[edge.from].is_none()) edge.from = first[edge.from];
    if (!first[edge.to].is_none()) edge.to = first[edge.to];
  }
  const IdVector<TaskId, TaskId> number = NumberAlong(graph.num_tasks(), edges);
  IdVector<TaskId, TaskId> numbered(graph.num_tasks());
  for (const TaskId t : graph.task_ids()) {
    if (number[t].is_none()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the pairs leave no order: task ", t.value(), " waits for itself"));
    }
    numbered[number[t]] = t;
  }
  const IdVector<TaskId, TaskId> with = DoneWith(graph, memory, pairs);
  ConstrainedGraph constrained;
  constrained.now.resize(graph.num_tasks());
  IdVector<TaskId, Task> tasks;
  tasks.reserve(graph.num_tasks());
  for (const TaskId t : numbered) {
    if (!first[t].is_none() || !with[t].is_none()) continue;
    constrained.now[t] = tasks.push_back(graph.task(t));
    constrained.members.push_back({t});
  }
  // Adds a task to the one that stands for it and holds already what it takes.
  const auto join = [&](TaskId task, TaskId now) {
    constrained.now[task] = now;
    constrained.members[now].push_back(task);
    tasks[now].free += graph.task(task).free - graph.task(task).alloc;
  };
  for (const ForwardPair& pair : forward_pairs) {
    join(pair.second, constrained.now[pair.first]);
  }
  for (const TaskId t : graph.task_ids()) {
    if (!with[t].is_none()) join(t, constrained.now[with[t]]);
  }
  IdVector<EdgeId, Dependency> kept;
  kept.reserve(edges.size());
  for (Dependency edge : edges) {
    if (!with[edge.to].is_none()) continue;
    edge.from = constrained.now[edge.from];
    edge.to = constrained.now[edge.to];
    kept.push_back(edge);
  }
  for (const PairedPass& pair : pairs) {
    if (pair.rest == kZero) continue;
    tasks[constrained.now[pair.weight_grad]].duration = pair.rest;
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      constrained.graph,
      StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                         std::move(tasks), std::move(kept)));
  return constrained;
}

RankOrders ToConstrained(RankOrders orders,
                         const ConstrainedGraph& constrained) {
  for (std::vector<TaskId>& order : orders) {
    std::erase_if(order, [&](TaskId t) {
      return constrained.members[constrained.now[t]].front() != t;
    });
    for (TaskId& t : order) t = constrained.now[t];
  }
  return orders;
}

RankOrders FromConstrained(const RankOrders& orders,
                           const ConstrainedGraph& constrained) {
  RankOrders result(orders.size());
  for (const RankId r : orders.ids()) {
    for (const TaskId t : orders[r]) {
      const auto& members = constrained.members[t];
      result[r].insert(result[r].end(), members.begin(), members.end());
    }
  }
  return result;
}

absl::Status SearchPaired(const PreparedJob& job, const PlanInput& input,
                          const partition::BuiltGraph& built,
                          const partition::StepMemory& memory,
                          const SearchBudget& budget, Candidate* best,
                          int64_t* evaluations) {
  const std::vector<ForwardPair>& forward_pairs = best->made.forward_pairs;
  if ((best->made.pairs.empty() && forward_pairs.empty()) ||
      budget.max_evaluations < 1) {
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
      ConstrainByPairs(chosen, with_forms, best->made.pairs, forward_pairs));
  // The bound of the answer holds for paired weight gradients too, and
  // computing one that sees memory takes as long as many evaluations.
  const NamedBound bound =
      forward_pairs.empty()
          ? NamedBound{best->made.found.lower_bound.count(),
                       best->made.found.bound_source}
          : LowerBoundWithoutMemory(FlatGraph(constrained.graph));
  GraphSearch search(constrained.graph, input.seed, bound);
  absl::StatusOr<SearchResult> found = search.Run(
      budget, ToConstrained(best->made.found.schedule.order, constrained));
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
  PIPELOOM_ASSIGN_OR_RETURN(StageGraph paired, ApplyPairs(chosen, next.pairs));
  PIPELOOM_ASSIGN_OR_RETURN(paired,
                            ApplyForwardPairs(paired, next.forward_pairs));
  PIPELOOM_ASSIGN_OR_RETURN(
      next.found.schedule,
      TimeSchedule(paired,
                   FromConstrained(found->schedule.order, constrained)));
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
