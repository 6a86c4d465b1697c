#include "planner/plan_bound.h"

#include <algorithm>
#include <cstdint>

#include "planner/flat_graph.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kMostTasks = 20'000;

}  // namespace

FlatGraph LeastMemory(const StageGraph& graph,
                      const partition::StepMemory& memory) {
  FlatGraph flat(graph);
  IdVector<RankId, int64_t> longest_gap(graph.num_ranks(), 0);
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    int64_t& longest = longest_gap[graph.task(pair.backward).rank];
    longest = std::max(longest, memory.effect(id, 0).gap.count());
    if (memory.has_other_form(id)) {
      longest =
          std::max(longest, memory.effect_in_other_form(id, 0).gap.count());
    }
  }
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    const int32_t forward = pair.forward.value();
    const int32_t backward = pair.backward.value();
    int64_t& held = flat.alloc[forward];
    int64_t peak = kNoLimit;  // While the backward runs.
    const auto& candidates = memory.candidates(id);
    int64_t whole = kNoLimit;  // Both gradients.
    int64_t apart = kNoLimit;  // The input gradient.
    const auto consider = [&](const partition::MemoryEffect& effect) {
      held = std::min(held, effect.held().count());
      peak = std::min(peak, effect.backward_peak().count());
      apart = std::min(apart, effect.backward.count());
      whole = std::min(whole, (effect.backward + effect.weight_grad).count());
    };
    for (size_t j = 0; j < candidates.size(); ++j) {
      consider(candidates[j].effect);
      if (memory.has_other_form(id)) {
        consider(memory.effect_in_other_form(id, static_cast<int32_t>(j)));
      }
    }
    flat.duration[backward] = apart;
    flat.free[forward] = 0;
    flat.alloc[backward] = std::max<int64_t>(0, peak - held);
    flat.free[backward] = held + flat.alloc[backward];
    if (pair.weight_grad.is_none()) continue;
    // All but what the gaps of one backward of the rank may take of it.
    const int64_t gap = longest_gap[graph.task(pair.backward).rank];
    flat.duration[pair.weight_grad.value()] =
        std::max<int64_t>(0, whole - apart - gap);
    flat.alloc[pair.weight_grad.value()] = 0;
    flat.free[pair.weight_grad.value()] = 0;
  }
  return flat;
}

NamedBound PlanBound(const StageGraph& graph,
                     const partition::StepMemory* memory) {
  if (graph.num_tasks() > kMostTasks) {
    return LowerBoundWithoutMemory(FlatGraph(graph));
  }
  return CheapLowerBound(memory == nullptr ? FlatGraph(graph)
                                           : LeastMemory(graph, *memory));
}

}  // namespace pipeloom::planner
