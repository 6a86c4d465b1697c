#include "planner/refine/fuse_last.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "planner/passes/pair_forwards.h"
#include "planner/passes/pair_passes.h"

namespace pipeloom::planner {
namespace {

using partition::PassForm;
using partition::StagePair;
using partition::StepMemory;

// Returns the pairs of the backwards of a rank that can become whole. `order`:
// of its tasks.
std::vector<StagePairId> PairsToFuse(const StageGraph& graph,
                                     const StepMemory& memory,
                                     const MemorySchedule& made,
                                     const std::vector<TaskId>& order,
                                     FusedPasses which) {
  std::set<TaskId> with_forwards;
  for (const ForwardPair& pair : made.forward_pairs) {
    with_forwards.insert(pair.first);
    with_forwards.insert(pair.second);
  }
  IdVector<TaskId, StagePairId> pair_of(graph.num_tasks());
  for (const StagePairId id : memory.pairs.ids()) {
    const StagePair& pair = memory.pairs[id];
    if (!pair.weight_grad.is_none()) pair_of[pair.weight_grad] = id;
  }
  std::vector<StagePairId> found;
  std::set<StageId> seen;
  for (auto t = order.rbegin(); t != order.rend(); ++t) {
    const StagePairId id = pair_of[*t];
    if (id.is_none()) continue;
    const bool is_last = seen.insert(graph.task(*t).stage).second;
    if ((is_last || which == FusedPasses::kAll) && memory.has_other_form(id) &&
        memory.form(id) == PassForm::kSplit &&
        !with_forwards.contains(memory.pairs[id].backward)) {
      found.push_back(id);
    }
  }
  return found;
}

}  // namespace

absl::StatusOr<std::optional<MemorySchedule>> FuseOnRank(
    const StageGraph& graph, const StepMemory& choices,
    const MemorySchedule& made, RankId rank, FusedPasses which) {
  StepMemory memory = choices;
  memory.SetForms(made.forms);
  MemorySchedule next = made;
  std::vector<TaskId>& order = next.found.schedule.order[rank];
  const std::vector<StagePairId> fused =
      PairsToFuse(graph, memory, made, order, which);
  if (fused.empty()) return std::nullopt;
  // Weight gradients of whole backwards, by those.
  std::map<TaskId, TaskId> after;
  std::set<TaskId> moved;
  for (const StagePairId id : fused) {
    memory.SwitchForm(id);
    after[memory.pairs[id].backward] = memory.pairs[id].weight_grad;
    moved.insert(memory.pairs[id].weight_grad);
  }
  // Those that ran during whole backwards, by those.
  std::map<TaskId, TaskId> before;
  std::erase_if(next.pairs, [&](const PairedPass& pair) {
    if (moved.contains(pair.weight_grad)) return true;
    if (!after.contains(pair.backward)) return false;
    before[pair.backward] = pair.weight_grad;
    moved.insert(pair.weight_grad);
    return true;
  });
  std::vector<TaskId> now;
  for (const TaskId t : order) {
    if (moved.contains(t)) continue;
    if (const auto at = before.find(t); at != before.end()) {
      now.push_back(at->second);
    }
    now.push_back(t);
    if (const auto at = after.find(t); at != after.end()) {
      now.push_back(at->second);
    }
  }
  order = std::move(now);
  next.forms = memory.forms();
  PIPELOOM_ASSIGN_OR_RETURN(
      StageGraph chosen, partition::ApplyMemory(graph, memory, next.selection));
  if (!next.pairs.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(chosen, ApplyPairs(chosen, next.pairs));
  }
  if (!next.forward_pairs.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(chosen,
                              ApplyForwardPairs(chosen, next.forward_pairs));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      next.found.schedule,
      TimeSchedule(chosen, std::move(next.found.schedule.order)));
  return next;
}

}  // namespace pipeloom::planner
