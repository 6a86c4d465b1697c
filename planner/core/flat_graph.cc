#include "planner/core/flat_graph.h"

#include <algorithm>
#include <array>
#include <map>

#include "ir/plan/pass_pairs.h"

namespace pipeloom::planner {

FlatGraph::FlatGraph(const StageGraph& graph)
    : num_ranks(graph.num_ranks()), num_tasks(graph.num_tasks()) {
  const auto n = static_cast<size_t>(num_tasks);
  duration.reserve(n);
  alloc.reserve(n);
  free.reserve(n);
  rank.reserve(n);
  pass.reserve(n);
  for (const Task& task : graph.tasks()) {
    duration.push_back(task.duration.count());
    alloc.push_back(task.alloc.count());
    free.push_back(task.free.count());
    rank.push_back(task.rank.value());
    pass.push_back(task.pass);
  }
  pred_offset.reserve(n + 1);
  succ_offset.reserve(n + 1);
  pred_offset.push_back(0);
  succ_offset.push_back(0);
  const IdVector<TaskId, TaskId> seconds = SecondsOfPairs(graph);
  for (const TaskId t : graph.task_ids()) {
    const auto add_producers_of = [&](TaskId task) {
      for (const EdgeId e : graph.incoming(task)) {
        pred.push_back(graph.edge(e).from.value());
        pred_delay.push_back(graph.edge(e).delay.count());
      }
    };
    add_producers_of(t);
    if (!seconds.empty() && !seconds[t].is_none()) add_producers_of(seconds[t]);
    for (const EdgeId e : graph.outgoing(t)) {
      const TaskId to = graph.edge(e).to;
      succ.push_back(to.value());
      succ_delay.push_back(graph.edge(e).delay.count());
      if (!IsSecondOfPair(graph.task(to))) continue;
      succ.push_back(graph.task(to).overlaps.value());
      succ_delay.push_back(graph.edge(e).delay.count());
    }
    pred_offset.push_back(static_cast<int32_t>(pred.size()));
    succ_offset.push_back(static_cast<int32_t>(succ.size()));
  }
  for (const RankSpec& spec : graph.ranks()) {
    const RankMemory& memory = spec.memory;
    capacity.push_back(memory.limit > Bytes(0)
                           ? (memory.limit - memory.static_bytes()).count()
                           : kNoLimit);
    epilogue.push_back(spec.epilogue.count());
  }
}

FlatGraph Idealised(const StageGraph& graph) {
  FlatGraph ideal(graph);
  std::fill(ideal.pred_delay.begin(), ideal.pred_delay.end(), 0);
  std::fill(ideal.succ_delay.begin(), ideal.succ_delay.end(), 0);
  struct Cell {
    int64_t total = 0;
    int64_t count = 0;
  };
  std::map<std::array<int32_t, 4>, Cell> cells;
  const auto key = [&](TaskId t) {
    const Task& task = graph.task(t);
    return std::array<int32_t, 4>{task.rank.value(), task.microbatch.value(),
                                  task.module.value(), task.stage.value()};
  };
  bool split = false;
  for (const TaskId t : graph.task_ids()) {
    Cell& cell = cells[key(t)];
    cell.total += graph.task(t).duration.count();
    ++cell.count;
    split = split || graph.task(t).pass == Pass::kWeightGrad;
  }
  if (!split) return ideal;
  for (const TaskId t : graph.task_ids()) {
    const Cell& cell = cells.at(key(t));
    ideal.duration[static_cast<size_t>(t.value())] = cell.total / cell.count;
  }
  return ideal;
}

std::vector<int32_t> Linearize(const FlatGraph& graph,
                               const RankOrders& orders) {
  if (orders.size() != graph.num_ranks) return {};
  std::vector<int32_t> missing(static_cast<size_t>(graph.num_tasks));
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    missing[t] = graph.pred_offset[t + 1] - graph.pred_offset[t];
  }
  std::vector<int32_t> sequence;
  sequence.reserve(static_cast<size_t>(graph.num_tasks));
  std::vector<size_t> position(static_cast<size_t>(graph.num_ranks), 0);
  std::vector<int32_t> runnable;
  for (int32_t r = 0; r < graph.num_ranks; ++r) runnable.push_back(r);
  while (!runnable.empty()) {
    const int32_t r = runnable.back();
    runnable.pop_back();
    const std::vector<TaskId>& order = orders[RankId(r)];
    while (position[r] < order.size()) {
      const int32_t t = order[position[r]].value();
      if (t < 0 || t >= graph.num_tasks || graph.rank[t] != r) return {};
      if (missing[t] != 0) break;
      missing[t] = -1;
      sequence.push_back(t);
      ++position[r];
      for (int32_t e = graph.succ_offset[t]; e < graph.succ_offset[t + 1];
           ++e) {
        const int32_t next = graph.succ[e];
        const int32_t other = graph.rank[next];
        if (--missing[next] == 0 && other != r &&
            position[other] < orders[RankId(other)].size() &&
            orders[RankId(other)][position[other]].value() == next) {
          runnable.push_back(other);
        }
      }
    }
  }
  if (sequence.size() != static_cast<size_t>(graph.num_tasks)) return {};
  return sequence;
}

RankOrders OrdersOf(const FlatGraph& graph,
                    absl::Span<const int32_t> sequence) {
  RankOrders orders(graph.num_ranks);
  for (const int32_t t : sequence) {
    orders[RankId(graph.rank[t])].push_back(TaskId(t));
  }
  return orders;
}

}  // namespace pipeloom::planner
