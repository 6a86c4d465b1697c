#include "trace/measured_costs.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/plan/pass_pairs.h"
#include "partition/graph/build_stage_graph.h"

namespace pipeloom::trace {
namespace {

constexpr char kAnyModule[] = "model";

// Module, stage, microbatch, sub-microbatch, pass.
using Key = std::tuple<std::string, int32_t, int32_t, int32_t, Pass>;

Key KeyOf(const StageGraph& graph, TaskId t, bool any_module) {
  const Task& task = graph.task(t);
  return {any_module
              ? std::string(kAnyModule)
              : graph.module_names()[static_cast<size_t>(task.module.value())],
          task.stage.value(), task.microbatch.value(),
          any_module ? 0 : task.sub_microbatch, task.pass};
}

absl::Status NoSuchTask(const Key& key, absl::string_view where) {
  const auto& [module, stage, microbatch, sub, pass] = key;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%c of %s, stage %d, microbatch %d, sub-microbatch %d, is only in %s; a "
      "trace must be of a step of the job, with the same batch and "
      "partition (--partition FILE)",
      PassLetter(pass), module, stage, microbatch, sub, std::string(where)));
}

}  // namespace

absl::StatusOr<emulator::CostLearner> LearnFromTasks(
    const StageGraph& measured, const emulator::StageCostModel& priced,
    const Partition& partition, const Microbatches& microbatches) {
  partition::GraphOptions options;
  options.split_backward = std::any_of(
      measured.tasks().begin(), measured.tasks().end(),
      [](const Task& task) { return task.pass == Pass::kWeightGrad; });
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(priced, partition, microbatches, options));
  const StageGraph& graph = built.graph;
  // The graph that prices backwards which were measured with both gradients.
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph fused,
      partition::BuildStageGraph(priced, partition, microbatches, {}));
  const std::vector<std::string>& names = graph.module_names();
  const bool any_module =
      measured.module_names() == std::vector<std::string>{kAnyModule} &&
      std::find(names.begin(), names.end(), kAnyModule) == names.end();
  struct Known {
    TaskId task{};  // The first with this key.
    Duration priced{};
    bool found = false;
  };
  std::map<Key, Known> known;
  for (const TaskId t : graph.task_ids()) {
    Known& k = known.try_emplace(KeyOf(graph, t, any_module), Known{.task = t})
                   .first->second;
    k.priced += graph.task(t).duration;
  }
  std::map<Key, Duration> fused_backwards;
  for (const TaskId t : fused.graph.task_ids()) {
    if (fused.graph.task(t).pass != Pass::kBackward) continue;
    fused_backwards[KeyOf(fused.graph, t, any_module)] +=
        fused.graph.task(t).duration;
  }
  std::set<Key> weight_grads;  // Measured weight gradients.
  for (const TaskId t : measured.task_ids()) {
    if (measured.task(t).pass == Pass::kWeightGrad) {
      weight_grads.insert(KeyOf(measured, t, any_module));
    }
  }
  const IdVector<TaskId, TaskId> seconds = SecondsOfPairs(measured);
  // The arguments of Learn: tasks with their prices, and their measured spans.
  IdVector<TaskId, Task> tasks;
  StepTrace took;
  took.num_ranks = graph.num_ranks();
  for (const TaskId t : measured.task_ids()) {
    Key key = KeyOf(measured, t, any_module);
    const auto it = known.find(key);
    if (it == known.end()) return NoSuchTask(key, "the trace");
    it->second.found = true;
    // Only a part of such a task was measured, or two tasks together.
    if (!measured.task(t).overlaps.is_none()) continue;
    if (!seconds.empty() && !seconds[t].is_none()) continue;
    Task task = graph.task(it->second.task);
    task.duration = it->second.priced;
    // Priced without recomputation, so the graph's task never has it.
    task.recomputes = measured.task(t).recomputes;
    if (task.pass == Pass::kBackward) {
      Key weight_grad = key;
      std::get<Pass>(weight_grad) = Pass::kWeightGrad;
      const auto apart = known.find(weight_grad);
      if (apart != known.end() && !weight_grads.contains(weight_grad)) {
        apart->second.found = true;
        task.duration = fused_backwards.at(key);
      }
    }
    if (task.recomputes) {
      std::get<Pass>(key) = Pass::kForward;
      const auto forward = known.find(key);
      if (forward != known.end()) task.duration += forward->second.priced;
    }
    const TaskId id = tasks.push_back(task);
    took.spans.push_back({.rank = task.rank,
                          .task = id,
                          .start = kStepStart,
                          .end = kStepStart + measured.task(t).duration});
  }
  for (const auto& [key, k] : known) {
    if (!k.found) return NoSuchTask(key, "the job's step");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const StageGraph graph_of_spans,
                            StageGraph::Create("measured", graph.ranks(), names,
                                               std::move(tasks), {}));
  emulator::CostLearner learned;
  PIPELOOM_RETURN_IF_ERROR(learned.Learn(graph_of_spans, took).status());
  return learned;
}

}  // namespace pipeloom::trace
