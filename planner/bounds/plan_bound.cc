#include "planner/bounds/plan_bound.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "planner/bounds/area_bound.h"
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
    if (pair.backward.is_none()) continue;
    const auto r = static_cast<size_t>(graph.task(pair.backward).rank.value());
    int64_t gap = memory.effect(id, 0).gap.count();
    if (memory.has_other_form(id)) {
      gap = std::max(gap, memory.effect_in_other_form(id, 0).gap.count());
    }
    // The backward of a frozen stage may hide the weight gradients of others.
    gaps[r] += gap;
    if (!pair.weight_grad.is_none()) apart[r] += WeightGradAlone(memory, id);
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

// A pair of one rank under one of its choices.
struct PricedChoice {
  double time = 0;  // Spent by the rank, in ns.
  double area = 0;  // Bytes x ns.
};

// Returns the choices of a pair. Its activations are held for `chain` ns at
// least between forward and backward. `hides`: its rank has weight gradients,
// which run in the gaps of any backward.
std::vector<PricedChoice> ChoicesOf(const StageGraph& graph,
                                    const partition::StepMemory& memory,
                                    StagePairId id, int64_t chain, bool hides) {
  const partition::StagePair& pair = memory.pairs[id];
  const auto forward =
      static_cast<double>(graph.task(pair.forward).duration.count());
  std::vector<PricedChoice> choices;
  const auto add = [&](const partition::MemoryEffect& effect) {
    const auto backward = static_cast<double>(effect.backward.count());
    PricedChoice choice;
    choice.time = forward + backward;
    if (!pair.weight_grad.is_none()) {
      choice.time += static_cast<double>(effect.weight_grad.count());
    }
    // All gaps of a rank together hide at most their sum.
    if (hides) choice.time -= static_cast<double>(effect.gap.count());
    choice.area =
        static_cast<double>(effect.forward_alloc.count()) * forward +
        static_cast<double>(effect.held().count()) *
            static_cast<double>(chain) +
        static_cast<double>(effect.backward_peak().count()) * backward;
    choices.push_back(choice);
  };
  const auto& candidates = memory.candidates(id);
  for (size_t j = 0; j < candidates.size(); ++j) {
    add(candidates[j].effect);
    if (memory.has_other_form(id)) {
      add(memory.effect_in_other_form(id, static_cast<int32_t>(j)));
    }
  }
  return choices;
}

// Returns a bound from time and memory at once. Recomputing a layer takes the
// rank's time, keeping it takes its memory; with any selection the step is at
// least as long as the rank's work and as the memory x time that it needs over
// its limit, and so as every mean of the two. For each weight of the mean the
// best selection is the best choice of each pair; the weight that gives most is
// found by bisection of a concave function. Without weight it is a "rank load".
NamedBound LoadAgainstMemory(const FlatGraph& least, const StageGraph& graph,
                             const partition::StepMemory& memory) {
  std::vector<StagePairId> ids;
  std::vector<std::pair<int32_t, int32_t>> ends;
  std::vector<bool> is_paired(static_cast<size_t>(least.num_tasks), false);
  for (const StagePairId id : memory.pairs.ids()) {
    const partition::StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none()) continue;
    ids.push_back(id);
    ends.push_back({pair.forward.value(), pair.backward.value()});
    is_paired[pair.forward.value()] = true;
    is_paired[pair.backward.value()] = true;
    if (!pair.weight_grad.is_none()) {
      is_paired[pair.weight_grad.value()] = true;
    }
  }
  const std::vector<int64_t> between = ChainsBetween(least, ends);
  if (between.empty()) return {};
  const auto ranks = static_cast<size_t>(least.num_ranks);
  std::vector<bool> hides(ranks, false);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (memory.pairs[ids[i]].weight_grad.is_none()) continue;
    hides[least.rank[ends[i].first]] = true;
  }
  std::vector<std::vector<std::vector<PricedChoice>>> pairs(ranks);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto r = static_cast<size_t>(least.rank[ends[i].first]);
    pairs[r].push_back(ChoicesOf(graph, memory, ids[i],
                                 std::max<int64_t>(0, between[i]), hides[r]));
  }
  std::vector<double> other(ranks, 0);
  std::vector<int64_t> head(ranks, kNoLimit);
  std::vector<int64_t> tail(ranks, kNoLimit);
  const HeadsAndTails chains = ChainsOf(least);
  for (int32_t t = 0; t < least.num_tasks; ++t) {
    const auto r = static_cast<size_t>(least.rank[t]);
    if (!is_paired[t]) other[r] += static_cast<double>(least.duration[t]);
    head[r] = std::min(head[r], chains.head[t]);
    tail[r] = std::min(tail[r], chains.tail[t]);
  }
  double load = 0;  // The largest sum of any rank without weight.
  double most = 0;  // The same with the best weight tried.
  for (size_t r = 0; r < ranks; ++r) {
    const int64_t capacity = least.capacity[r];
    if (capacity <= 0 || capacity >= kNoLimit || pairs[r].empty()) continue;
    const auto limit = static_cast<double>(capacity);
    const double outside = static_cast<double>(head[r] + tail[r]);
    // The sum for a weight of memory in [0, 1], and its slope.
    const auto sum = [&](double weight, double* slope) {
      double time = other[r];
      double area = 0;
      for (const std::vector<PricedChoice>& choices : pairs[r]) {
        const PricedChoice* best = nullptr;
        double least_sum = 0;
        for (const PricedChoice& choice : choices) {
          const double priced =
              (1 - weight) * choice.time + weight * choice.area / limit;
          if (best == nullptr || priced < least_sum) {
            best = &choice;
            least_sum = priced;
          }
        }
        time += best->time;
        area += best->area / limit;
      }
      *slope = area - time;
      return outside + (1 - weight) * time + weight * area;
    };
    double slope = 0;
    load = std::max(load, sum(0, &slope));
    double low = 0;
    double high = 1;
    for (int i = 0; i < 12; ++i) {
      const double weight = (low + high) / 2;
      most = std::max(most, sum(weight, &slope));
      (slope > 0 ? low : high) = weight;
    }
  }
  // Sums of doubles are exact to far less than a billionth.
  return {.time = static_cast<int64_t>(std::max(load, most) * (1 - 1e-9)),
          .source = most > load ? "area" : "rank load"};
}

// Returns the largest of a bound and those from loads.
NamedBound WithLoads(NamedBound bound, const FlatGraph& least,
                     const StageGraph& graph,
                     const partition::StepMemory& memory) {
  const int64_t load = LoadWithGaps(least, graph, memory);
  if (load > bound.time) bound = {.time = load, .source = "rank load"};
  const NamedBound priced = LoadAgainstMemory(least, graph, memory);
  if (priced.time > bound.time) bound = priced;
  return bound;
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
  const bool is_huge = graph.num_tasks() > kMaxTasks;
  if (memory == nullptr) {
    const FlatGraph flat(graph);
    return is_huge ? LowerBoundWithoutMemory(flat) : CheapLowerBound(flat);
  }
  if (is_huge) return QuickPlanBound(graph, *memory);
  const FlatGraph least = LeastMemory(graph, *memory);
  return WithLoads(CheapLowerBound(least), least, graph, *memory);
}

NamedBound QuickPlanBound(const StageGraph& graph,
                          const partition::StepMemory& memory) {
  const FlatGraph least = LeastMemory(graph, memory);
  return WithLoads(LowerBoundWithoutMemory(least), least, graph, memory);
}

}  // namespace pipeloom::planner
