#include "planner/bounds/plan_bound.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/core/flat_graph.h"

namespace pipeloom::planner {
namespace {

constexpr int32_t kMaxTasks = 20'000;

// Returns the time of both gradients in the form that takes less, minus the
// time of the shortest input gradient alone.
int64_t WeightGradAlone(const partition::StepMemory& memory, StagePairId id) {
  int64_t whole = kNoLimit;
  int64_t apart = kNoLimit;
  const auto consider = [&](const partition::MemoryEffect& effect) {
    apart = std::min(apart, effect.backward.count());
    whole = std::min(whole, (effect.backward + effect.weight_grad).count());
  };
  consider(memory.effect(id, 0));
  if (memory.has_other_form(id)) {
    consider(memory.effect_in_other_form(id, 0));
  }
  return whole - apart;
}

// Returns the load of the busiest rank plus the shortest chains before its
// first task and after its last one. LeastMemory's graph has each weight
// gradient without the part that one gap may hide; here all gaps of a rank
// together hide at most their sum.
int64_t LoadWithGaps(const FlatGraph& least, const StageGraph& graph,
                     const partition::StepMemory& memory) {
  const auto ranks = static_cast<size_t>(graph.num_ranks());
  std::vector<int64_t> apart(ranks, 0);  // Weight gradients that run alone.
  std::vector<int64_t> gaps(ranks, 0);
  std::vector<int64_t> load(ranks, 0);
  std::vector<int64_t> head(ranks, kNoLimit);
  std::vector<int64_t> tail(ranks, kNoLimit);
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none() || pair.weight_grad.is_none()) continue;
    const auto r = static_cast<size_t>(graph.task(pair.backward).rank.value());
    int64_t gap = memory.effect(id, 0).gap.count();
    if (memory.has_other_form(id)) {
      gap = std::max(gap, memory.effect_in_other_form(id, 0).gap.count());
    }
    gaps[r] += gap;
    apart[r] += WeightGradAlone(memory, id);
  }
  const HeadsAndTails chains = ChainsOf(least);
  for (int32_t t = 0; t < least.num_tasks; ++t) {
    const auto task = static_cast<size_t>(t);
    const auto r = static_cast<size_t>(least.rank[task]);
    if (least.pass[task] != Pass::kWeightGrad) load[r] += least.duration[task];
    head[r] = std::min(head[r], chains.head[task]);
    tail[r] = std::min(tail[r], chains.tail[task]);
  }
  int64_t most = 0;
  for (size_t r = 0; r < ranks; ++r) {
    if (head[r] >= kNoLimit) continue;
    most = std::max(most, head[r] + tail[r] + load[r] +
                              std::max<int64_t>(0, apart[r] - gaps[r]));
  }
  return most;
}

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
    int64_t forward_peak = flat.alloc[forward];
    int64_t held = forward_peak;
    int64_t peak = kNoLimit;  // Bytes while the backward runs.
    const auto& candidates = memory.candidates(id);
    int64_t whole = kNoLimit;  // Time of both gradients.
    int64_t apart = kNoLimit;  // Time of the input gradient.
    const auto consider = [&](const partition::MemoryEffect& effect) {
      held = std::min(held, effect.held().count());
      forward_peak = std::min(forward_peak, effect.forward_alloc.count());
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
    flat.alloc[forward] = forward_peak;
    flat.free[forward] = forward_peak - held;
    flat.alloc[backward] = std::max<int64_t>(0, peak - held);
    flat.free[backward] = held + flat.alloc[backward];
    if (pair.weight_grad.is_none()) continue;
    // The part of it that the gaps of a single backward of the rank cannot
    // hide.
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
  if (graph.num_tasks() > kMaxTasks) {
    return LowerBoundWithoutMemory(FlatGraph(graph));
  }
  if (memory == nullptr) return CheapLowerBound(FlatGraph(graph));
  const FlatGraph least = LeastMemory(graph, *memory);
  NamedBound bound = CheapLowerBound(least);
  const int64_t load = LoadWithGaps(least, graph, *memory);
  if (load > bound.time) bound = {.time = load, .source = "rank load"};
  return bound;
}

}  // namespace pipeloom::planner
