#include "planner/core/reversed_graph.h"

#include <utility>

#include "base/check.h"
#include "ir/ids.h"

namespace pipeloom::planner {
namespace {

Pass Mirror(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return Pass::kBackward;
    case Pass::kBackward:
      return Pass::kForward;
    default:
      return pass;  // It still fills the time when nothing else is ready.
  }
}

}  // namespace

bool CanReverse(const StageGraph& graph) {
  // Reversed, a pass would run during one with a larger id.
  for (const Task& task : graph.tasks()) {
    if (!task.overlaps.is_none()) return false;
  }
  for (const RankId r : graph.rank_ids()) {
    if (graph.rank(r).epilogue != graph.rank(RankId(0)).epilogue) return false;
    Bytes kept{};
    for (const TaskId t : graph.tasks_of(r)) {
      kept += graph.task(t).alloc - graph.task(t).free;
    }
    if (kept != Bytes(0)) return false;
  }
  return true;
}

StageGraph InReversedTime(const StageGraph& graph) {
  const auto mirrored = [&](TaskId t) {
    return TaskId(graph.num_tasks() - 1 - t.value());
  };
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) rank.epilogue = kZero;
  IdVector<TaskId, Task> tasks;
  for (const TaskId t : graph.task_ids()) {
    Task task = graph.task(mirrored(t));
    task.pass = Mirror(task.pass);
    std::swap(task.alloc, task.free);
    tasks.push_back(task);
  }
  IdVector<EdgeId, Dependency> edges = graph.edges();
  for (Dependency& edge : edges) {
    edge.from = mirrored(edge.from);
    edge.to = mirrored(edge.to);
    std::swap(edge.from, edge.to);
  }
  auto reversed =
      StageGraph::Create(graph.name(), std::move(ranks), graph.module_names(),
                         std::move(tasks), std::move(edges));
  PIPELOOM_CHECK(reversed.ok());
  return *std::move(reversed);
}

std::vector<int32_t> ReadBackwards(absl::Span<const int32_t> sequence) {
  const auto last = static_cast<int32_t>(sequence.size()) - 1;
  std::vector<int32_t> backwards;
  backwards.reserve(sequence.size());
  for (size_t i = sequence.size(); i-- > 0;) {
    backwards.push_back(last - sequence[i]);
  }
  return backwards;
}

}  // namespace pipeloom::planner
