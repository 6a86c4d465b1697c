#include "ir/plan/stage_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

// Groups the items by key, in item order, as compressed rows.
template <typename ItemId, typename KeyOf>
void GroupBy(int32_t num_keys, int32_t num_items, KeyOf key_of,
             std::vector<ItemId>* items, std::vector<int32_t>* offset) {
  // While items are placed, places[k + 1] is where the next one of key k goes;
  // then it is the end of key k.
  offset->assign(static_cast<size_t>(num_keys) + 2, 0);
  int32_t* const places = offset->data();
  for (const ItemId id : IdRange<ItemId>(num_items)) ++places[key_of(id) + 2];
  for (int32_t k = 2; k < num_keys + 2; ++k) places[k] += places[k - 1];
  items->resize(static_cast<size_t>(num_items));
  ItemId* const placed = items->data();
  for (const ItemId id : IdRange<ItemId>(num_items)) {
    placed[places[key_of(id) + 1]++] = id;
  }
  offset->pop_back();
}

template <typename ItemId>
absl::Span<const ItemId> Row(const std::vector<ItemId>& items,
                             const std::vector<int32_t>& offset, int32_t key) {
  const auto begin = static_cast<size_t>(offset[static_cast<size_t>(key)]);
  const auto end = static_cast<size_t>(offset[static_cast<size_t>(key) + 1]);
  return absl::MakeConstSpan(items).subspan(begin, end - begin);
}

// Returns whether one is a forward and the other a backward of another
// microbatch.
bool MayPair(const Task& a, const Task& b) {
  return a.pass != b.pass && a.pass != Pass::kWeightGrad &&
         b.pass != Pass::kWeightGrad && a.microbatch != b.microbatch;
}

// Checks that each of `paired` is in one pair, and that no weight gradient
// overlaps one of them: it would use the same gaps.
absl::Status CheckPairs(const IdVector<TaskId, Task>& tasks,
                        std::vector<TaskId> paired) {
  if (paired.empty()) return absl::OkStatus();
  std::sort(paired.begin(), paired.end());
  const auto twice = std::adjacent_find(paired.begin(), paired.end());
  if (twice != paired.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "task %d runs together with two others; one is right", twice->value()));
  }
  for (const TaskId id : tasks.ids()) {
    const Task& task = tasks[id];
    if (task.overlaps.is_none() || task.pass != Pass::kWeightGrad ||
        !std::binary_search(paired.begin(), paired.end(), task.overlaps)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "task %d overlaps task %d, which runs together with a pass of another "
        "microbatch; it must overlap another backward or none",
        id.value(), task.overlaps.value()));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const IdVector<RankId, RankSpec>& ranks) {
  for (const RankId id : ranks.ids()) {
    const RankMemory& m = ranks[id].memory;
    for (const Bytes b :
         {m.limit, m.weights, m.gradients, m.optimizer, m.overhead}) {
      if (b < Bytes(0)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "rank %d: memory of %d B; it must be >= 0", id.value(), b.count()));
      }
    }
    if (ranks[id].epilogue < kZero) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rank %d: its epilogue is negative", id.value()));
    }
  }
  return absl::OkStatus();
}

// Checks that a task may overlap the one that it names.
absl::Status CheckOverlap(const IdVector<TaskId, Task>& tasks, TaskId id) {
  const Task& task = tasks[id];
  const bool valid =
      tasks.Contains(task.overlaps) && tasks[task.overlaps].rank == task.rank &&
      (task.pass == Pass::kWeightGrad
           ? tasks[task.overlaps].pass == Pass::kBackward
           : MayPair(tasks[task.overlaps], task) && task.overlaps > id);
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "task %d overlaps task %d; a weight gradient may overlap a "
        "backward of its rank, and of a forward and a backward of two "
        "microbatches of one rank the one with the smaller number may "
        "overlap the other",
        id.value(), task.overlaps.value()));
  }
  if (task.pass != Pass::kWeightGrad && task.duration != kZero) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "task %d runs together with task %d: duration %d ns; it must be "
        "0, as that of the other is of both",
        id.value(), task.overlaps.value(), task.duration.count()));
  }
  return absl::OkStatus();
}

absl::Status CheckTask(const IdVector<TaskId, Task>& tasks, TaskId id,
                       const IdVector<RankId, RankSpec>& ranks,
                       const std::vector<std::string>& module_names) {
  const Task& task = tasks[id];
  if (!ranks.Contains(task.rank)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("task %d: rank %d does not exist; there are %d ranks",
                        id.value(), task.rank.value(), ranks.size()));
  }
  if (task.duration < kZero || task.alloc < Bytes(0) || task.free < Bytes(0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "task %d: duration %d ns, alloc %d B, free %d B; all must be >= 0",
        id.value(), task.duration.count(), task.alloc.count(),
        task.free.count()));
  }
  const int32_t module = task.module.value();
  if (module < 0 || module >= static_cast<int32_t>(module_names.size())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("task %d: module %d does not exist; there are %d",
                        id.value(), module, module_names.size()));
  }
  return task.overlaps.is_none() ? absl::OkStatus() : CheckOverlap(tasks, id);
}

absl::Status CheckDependencies(const IdVector<EdgeId, Dependency>& dependencies,
                               const IdVector<TaskId, Task>& tasks) {
  for (const EdgeId id : dependencies.ids()) {
    const Dependency& d = dependencies[id];
    if (!tasks.Contains(d.from) || !tasks.Contains(d.to) || !(d.from < d.to)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "dependency %d: from task %d to task %d; both must be in [0, %d) and "
          "the first smaller",
          id.value(), d.from.value(), d.to.value(), tasks.size()));
    }
    if (d.delay < kZero || d.occupancy < kZero || d.occupancy > d.delay ||
        d.payload < Bytes(0) || d.rows < 0 || d.width < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "dependency %d (task %d to task %d): delay %d ns, occupancy %d ns, "
          "payload %d B; all must be >= 0 and occupancy <= delay",
          id.value(), d.from.value(), d.to.value(), d.delay.count(),
          d.occupancy.count(), d.payload.count()));
    }
  }
  return absl::OkStatus();
}

// Checks that all sums of times or sizes of a graph are in range.
absl::Status CheckSums(const IdVector<RankId, RankSpec>& ranks,
                       const IdVector<TaskId, Task>& tasks,
                       const IdVector<EdgeId, Dependency>& dependencies) {
  constexpr int64_t kMax = int64_t{1} << 60;
  int64_t nanoseconds = 0;
  int64_t bytes = 0;
  const auto add = [](int64_t value, int64_t* sum) {
    *sum = value > kMax - *sum ? kMax : *sum + value;
  };
  for (const RankSpec& rank : ranks) {
    const RankMemory& m = rank.memory;
    add(rank.epilogue.count(), &nanoseconds);
    for (const Bytes b : {m.weights, m.gradients, m.optimizer, m.overhead}) {
      add(b.count(), &bytes);
    }
  }
  for (const Task& task : tasks) {
    add(task.duration.count(), &nanoseconds);
    add(task.alloc.count(), &bytes);
    add(task.free.count(), &bytes);
  }
  for (const Dependency& d : dependencies) {
    add(d.delay.count(), &nanoseconds);
    add(d.payload.count(), &bytes);
  }
  if (nanoseconds >= kMax || bytes >= kMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "all %s of the graph together must be less than %d",
        nanoseconds >= kMax ? "times in nanoseconds" : "sizes in bytes", kMax));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StageGraph> StageGraph::Create(
    std::string name, IdVector<RankId, RankSpec> ranks,
    std::vector<std::string> module_names, IdVector<TaskId, Task> tasks,
    IdVector<EdgeId, Dependency> dependencies) {
  PIPELOOM_RETURN_IF_ERROR(CheckRanks(ranks));
  std::vector<TaskId> paired;  // Passes of pairs.
  for (const TaskId id : tasks.ids()) {
    PIPELOOM_RETURN_IF_ERROR(CheckTask(tasks, id, ranks, module_names));
    if (tasks[id].overlaps.is_none()) continue;
    if (tasks[id].pass == Pass::kWeightGrad) continue;
    paired.push_back(id);
    paired.push_back(tasks[id].overlaps);
  }
  PIPELOOM_RETURN_IF_ERROR(CheckPairs(tasks, std::move(paired)));
  PIPELOOM_RETURN_IF_ERROR(CheckDependencies(dependencies, tasks));
  PIPELOOM_RETURN_IF_ERROR(CheckSums(ranks, tasks, dependencies));
  StageGraph graph;
  graph.name_ = std::move(name);
  graph.ranks_ = std::move(ranks);
  graph.module_names_ = std::move(module_names);
  graph.tasks_ = std::move(tasks);
  graph.edges_ = std::move(dependencies);
  const auto& edges = graph.edges_;
  GroupBy<EdgeId>(
      graph.num_tasks(), graph.num_edges(),
      [&](EdgeId e) { return edges[e].to.value(); }, &graph.in_,
      &graph.in_offset_);
  GroupBy<EdgeId>(
      graph.num_tasks(), graph.num_edges(),
      [&](EdgeId e) { return edges[e].from.value(); }, &graph.out_,
      &graph.out_offset_);
  const auto& all = graph.tasks_;
  GroupBy<TaskId>(
      graph.num_ranks(), graph.num_tasks(),
      [&](TaskId t) { return all[t].rank.value(); }, &graph.by_rank_,
      &graph.rank_offset_);
  return graph;
}

absl::Span<const EdgeId> StageGraph::incoming(TaskId id) const {
  return Row(in_, in_offset_, id.value());
}

absl::Span<const EdgeId> StageGraph::outgoing(TaskId id) const {
  return Row(out_, out_offset_, id.value());
}

absl::Span<const TaskId> StageGraph::tasks_of(RankId rank) const {
  return Row(by_rank_, rank_offset_, rank.value());
}

StageGraph StageGraph::WithRanks(IdVector<RankId, RankSpec> ranks) const& {
  return StageGraph(*this).WithRanks(std::move(ranks));
}

StageGraph StageGraph::WithRanks(IdVector<RankId, RankSpec> ranks) && {
  PIPELOOM_CHECK(ranks.size() == num_ranks());
  ranks_ = std::move(ranks);
  return std::move(*this);
}

char PassLetter(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return 'F';
    case Pass::kBackward:
      return 'B';
    case Pass::kWeightGrad:
      return 'W';
  }
  return '?';
}

std::string DescribeTask(const StageGraph& graph, TaskId id) {
  const Task& task = graph.task(id);
  return DescribeTask(
      task, id, graph.module_names()[static_cast<size_t>(task.module.value())]);
}

std::string DescribeTask(const Task& task, TaskId id,
                         const std::string& module_name) {
  std::string text =
      absl::StrFormat("task %d (%c %s stage %d microbatch %d", id.value(),
                      PassLetter(task.pass), module_name, task.stage.value(),
                      task.microbatch.value());
  if (task.sub_microbatch > 0) {
    text += absl::StrFormat(" sub-microbatch %d", task.sub_microbatch);
  }
  return text + ")";
}

}  // namespace pipeloom
