#include "runtime/torch/trainer_state.h"

#include <map>
#include <tuple>
#include <variant>

#include "absl/strings/str_format.h"

namespace pipeloom::runtime {

absl::Status FindPairs(StepPlan* step) {
  const StageGraph& graph = step->plan.graph;
  std::map<std::tuple<StageId, MicrobatchId, int32_t>, size_t> index;
  step->pair_of.resize(graph.num_tasks());
  for (const TaskId id : graph.task_ids()) {
    const Task& task = graph.task(id);
    const auto [at, added] = index.emplace(
        std::tuple(task.stage, task.microbatch, task.sub_microbatch),
        step->pairs.size());
    if (added) step->pairs.push_back({});
    TaskPair& pair = step->pairs[at->second];
    step->pair_of[id] = at->second;
    TaskId& place = task.pass == Pass::kForward    ? pair.forward
                    : task.pass == Pass::kBackward ? pair.backward
                                                   : pair.weight_grad;
    if (!place.is_none() ||
        (task.pass != Pass::kForward && pair.forward.is_none())) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s is there twice, or before its forward", DescribeTask(graph, id)));
    }
    place = id;
    if (added) {
      pair.id = StagePairId(static_cast<int32_t>(step->pairs.size()) - 1);
    }
  }
  for (const std::vector<Instruction>& program : step->plan.programs) {
    for (const Instruction& i : program) {
      const auto* offload = std::get_if<Offload>(&i);
      if (offload == nullptr) continue;
      step->pairs[step->pair_of[offload->task]].copies_apart = true;
    }
  }
  if (!step->memory.empty() && step->memory.choice_of.size() !=
                                   static_cast<int32_t>(step->pairs.size())) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the memory policy has %d stage pairs; the plan has %d",
                        step->memory.choice_of.size(), step->pairs.size()));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::runtime
