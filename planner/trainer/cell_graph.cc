#include "planner/trainer/cell_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"

namespace pipeloom::planner {
namespace {

size_t At(int32_t i) { return static_cast<size_t>(i); }

int32_t NumMicrobatches(const StageGraph& graph) {
  int32_t count = 0;
  for (const Task& task : graph.tasks()) {
    count = std::max(count, task.microbatch.value() + 1);
  }
  return count;
}

// Returns for each stage the microbatches of its forwards, in the order given.
std::vector<std::vector<int32_t>> Forwards(const StageGraph& cells,
                                           const RankOrders& orders) {
  std::vector<std::vector<int32_t>> forwards;
  for (const auto& order : orders) {
    for (const TaskId t : order) {
      const Task& task = cells.task(t);
      if (task.pass != Pass::kForward) continue;
      const size_t stage = At(task.stage.value());
      if (forwards.size() <= stage) forwards.resize(stage + 1);
      forwards[stage].push_back(task.microbatch.value());
    }
  }
  return forwards;
}

// Sets time and memory of tasks that run one after another.
void Join(const StageGraph& step, const std::vector<TaskId>& parts,
          Task* joined) {
  joined->duration = {};
  Bytes held;
  Bytes most;
  for (const TaskId t : parts) {
    const Task& part = step.task(t);
    joined->duration += part.duration;
    joined->recomputes = joined->recomputes || part.recomputes;
    held += part.alloc;
    most = std::max(most, held);
    held -= part.free;
  }
  // A weight gradient may release more than it takes.
  joined->alloc = std::max(most, Bytes(0));
  joined->free = joined->alloc - held;
}

}  // namespace

absl::StatusOr<CellGraph> MakeCells(const StageGraph& step,
                                    const IdVector<StageId, int32_t>& cell_of,
                                    const std::vector<int32_t>& microbatches,
                                    const CellOrder& order) {
  int32_t num_cells = 0;
  for (const int32_t cell : cell_of) num_cells = std::max(num_cells, cell + 1);
  std::vector<ModuleId> module_of(At(num_cells), ModuleId(0));
  for (const Task& task : step.tasks()) {
    ModuleId& module = module_of[At(cell_of[task.stage])];
    module = std::max(module, task.module);
  }
  std::vector<int32_t> number(At(NumMicrobatches(step)));
  for (size_t i = 0; i < number.size(); ++i) {
    const auto m = static_cast<int32_t>(i);
    number[microbatches.empty() ? i : At(microbatches[i])] = m;
  }
  // The step's tasks, which are numbered by microbatch, in the new order.
  std::vector<TaskId> tasks;
  for (const TaskId t : step.task_ids()) tasks.push_back(t);
  std::stable_sort(tasks.begin(), tasks.end(), [&](TaskId a, TaskId b) {
    return number[At(step.task(a).microbatch.value())] <
           number[At(step.task(b).microbatch.value())];
  });
  CellGraph cells;
  cells.cell_of.resize(step.num_tasks());
  IdVector<TaskId, Task> joined;
  std::vector<TaskId> slot(number.size() * At(num_cells) * 3);
  for (const TaskId t : tasks) {
    const Task& task = step.task(t);
    const int32_t cell = cell_of[task.stage];
    TaskId& id = slot[(At(number[At(task.microbatch.value())]) * At(num_cells) +
                       At(cell)) *
                          3 +
                      static_cast<size_t>(task.pass)];
    if (id.is_none()) {
      Task first = task;
      first.stage = StageId(cell);
      first.module = module_of[At(cell)];
      first.sub_microbatch = 0;
      first.microbatch = MicrobatchId(number[At(task.microbatch.value())]);
      id = joined.push_back(first);
      cells.parts.push_back({});
    }
    cells.parts[id].push_back(t);
    cells.cell_of[t] = id;
  }
  for (const TaskId t : joined.ids()) Join(step, cells.parts[t], &joined[t]);
  IdVector<EdgeId, Dependency> edges;
  // Several edges between the parts of two tasks are one.
  std::map<std::pair<TaskId, TaskId>, EdgeId> known;
  for (const Dependency& edge : step.edges()) {
    Dependency copy = edge;
    copy.from = cells.cell_of[edge.from];
    copy.to = cells.cell_of[edge.to];
    if (copy.from == copy.to) continue;
    const auto [entry, is_new] =
        known.try_emplace({copy.from, copy.to}, EdgeId(edges.size()));
    if (is_new) {
      edges.push_back(copy);
      continue;
    }
    Dependency& same = edges[entry->second];
    same.delay = std::max(same.delay, copy.delay);
    same.occupancy = std::max(same.occupancy, copy.occupancy);
    if (copy.payload > same.payload) {
      same.payload = copy.payload;
      same.rows = copy.rows;
      same.width = copy.width;
    }
  }
  const auto task_of = [&](size_t microbatch, size_t cell, Pass pass) {
    return slot[(microbatch * At(num_cells) + cell) * 3 +
                static_cast<size_t>(pass)];
  };
  for (size_t m = 1; m < number.size(); ++m) {
    for (size_t c = 0; c < At(num_cells); ++c) {
      const TaskId next = task_of(m, c, Pass::kForward);
      if (order.one_loss && c + 1 == At(num_cells)) {
        edges.push_back(
            {.from = task_of(m - 1, c, Pass::kBackward), .to = next});
      } else if (order.forwards) {
        edges.push_back(
            {.from = task_of(m - 1, c, Pass::kForward), .to = next});
      }
    }
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      cells.graph,
      StageGraph::Create(step.name(), step.ranks(), step.module_names(),
                         std::move(joined), std::move(edges)));
  return cells;
}

RankOrders PartsOf(const CellGraph& cells, const RankOrders& orders) {
  RankOrders parts(orders.size());
  for (const RankId r : orders.ids()) {
    for (const TaskId t : orders[r]) {
      parts[r].insert(parts[r].end(), cells.parts[t].begin(),
                      cells.parts[t].end());
    }
  }
  return parts;
}

RankOrders CellsOf(const CellGraph& cells, const RankOrders& orders) {
  RankOrders joined(orders.size());
  for (const RankId r : orders.ids()) {
    for (const TaskId t : orders[r]) {
      const TaskId cell = cells.cell_of[t];
      if (cells.parts[cell].front() == t) joined[r].push_back(cell);
    }
  }
  return joined;
}

std::vector<int32_t> ForwardOrder(const StageGraph& cells,
                                  const RankOrders& orders) {
  const auto forwards = Forwards(cells, orders);
  return forwards.empty() ? std::vector<int32_t>{} : forwards.front();
}

bool HasOneForwardOrder(const StageGraph& cells, const RankOrders& orders) {
  const auto forwards = Forwards(cells, orders);
  return std::all_of(forwards.begin(), forwards.end(),
                     [&](const auto& list) { return list == forwards[0]; });
}

bool HasOneLoss(const StageGraph& cells, const RankOrders& orders) {
  int32_t last = 0;
  for (const Task& task : cells.tasks()) {
    last = std::max(last, task.stage.value());
  }
  for (const auto& order : orders) {
    bool open = false;  // A forward without its backward.
    for (const TaskId t : order) {
      const Task& task = cells.task(t);
      if (task.stage.value() != last || task.pass == Pass::kWeightGrad) {
        continue;
      }
      const bool forward = task.pass == Pass::kForward;
      if (forward == open) return false;
      open = forward;
    }
  }
  return true;
}

}  // namespace pipeloom::planner
