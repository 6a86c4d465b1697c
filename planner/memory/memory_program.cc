#include "planner/memory/memory_program.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pipeloom::planner {
namespace {

using partition::MemoryEffect;
using partition::StagePair;
using partition::StepMemory;

// Positions of a pair's tasks in the order of its rank.
struct PairSpan {
  int32_t forward = 0;
  int32_t backward = 0;
  int32_t weight_grad = 0;  // Equals backward if not split.
};

// Returns what a pair uses with one effect, indexed by position.
std::vector<IntegerProgram::Use> UsesOf(const MemoryEffect& effect,
                                        const PairSpan& span) {
  const int64_t alloc = effect.forward_alloc.count();
  const int64_t held = effect.held().count();
  std::vector<IntegerProgram::Use> uses;
  const auto add = [&](int32_t first, int32_t end, int64_t amount) {
    if (first < end && amount > 0) uses.push_back({first, end, amount});
  };
  if (alloc == held) {
    add(span.forward, span.backward, held);
  } else {
    add(span.forward, span.forward + 1, alloc);
    add(span.forward + 1, span.backward, held);
  }
  add(span.backward, span.backward + 1, effect.backward_peak().count());
  add(span.backward + 1, span.weight_grad + 1, effect.weight_grad_free.count());
  return uses;
}

}  // namespace

IntegerProgram MakeRankProgram(const StageGraph& graph,
                               const StepMemory& memory, RankId rank,
                               const std::vector<StagePairId>& pairs,
                               const std::vector<TaskId>& order,
                               Bytes most_copied) {
  IntegerProgram program;
  const auto effect_of = [&](const std::vector<partition::MemoryCandidate>& of,
                             size_t j) -> const MemoryEffect& {
    return of[of[j].effect.offloaded > most_copied ? 0 : j].effect;
  };
  const auto num_positions = static_cast<int32_t>(order.size());
  IdVector<TaskId, int32_t> position(graph.num_tasks(), -1);
  for (int32_t p = 0; p < num_positions; ++p) {
    position[order[static_cast<size_t>(p)]] = p;
  }
  // A start is a row only if a neighbour's does not imply it: a forward's if
  // the next start takes less than the forward gives back; a weight gradient's
  // unless it comes after a backward, which holds no less.
  std::vector<bool> is_row(order.size(), true);
  std::vector<int64_t> fixed(order.size(), 0);
  std::vector<int64_t> least(order.size(), 0);  // Taken at the position.
  for (size_t p = 0; p < order.size(); ++p) {
    const Task& task = graph.task(order[p]);
    if (task.pass == Pass::kWeightGrad && p > 0 &&
        graph.task(order[p - 1]).pass != Pass::kForward) {
      is_row[p] = false;
    }
    // Corrected below for tasks of pairs with a choice.
    fixed[p] = least[p] = task.alloc.count();
  }
  int64_t copying = 0;  // Bytes set aside for copies.
  std::vector<PairSpan> spans;
  std::vector<int64_t> given_back;  // At most, indexed by pair of the rank.
  for (const StagePairId id : pairs) {
    const StagePair& pair = memory.pairs[id];
    const int32_t forward = position[pair.forward];
    const int32_t backward = position[pair.backward];
    const int32_t last =
        pair.weight_grad.is_none() ? backward : position[pair.weight_grad];
    PIPELOOM_CHECK(forward >= 0 && forward < backward && backward <= last);
    spans.push_back({forward, backward, last});
    int64_t offloaded = 0;
    int64_t least_forward = kNoLimit;
    int64_t least_backward = kNoLimit;  // In addition to what is held.
    int64_t& most_given_back = given_back.emplace_back(0);
    const auto& candidates = memory.candidates(id);
    for (size_t j = 0; j < candidates.size(); ++j) {
      const MemoryEffect& effect = effect_of(candidates, j);
      offloaded = std::max(offloaded, effect.offloaded.count());
      most_given_back = std::max(most_given_back, effect.forward_free.count());
      least_forward = std::min(least_forward, effect.forward_alloc.count());
      least_backward = std::min(least_backward, effect.backward_alloc.count());
    }
    copying = std::max(copying, offloaded);
    for (const int32_t p : {forward, backward, last}) {
      fixed[static_cast<size_t>(p)] = least[static_cast<size_t>(p)] = 0;
    }
    least[static_cast<size_t>(forward)] = least_forward;
    least[static_cast<size_t>(backward)] = least_backward;
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto p = static_cast<size_t>(spans[i].forward);
    if (p + 1 < order.size() && given_back[i] <= least[p + 1]) {
      is_row[p] = false;
    }
  }
  const RankMemory& limits = graph.rank(rank).memory;
  const int64_t capacity =
      limits.limit == Bytes(0)
          ? kNoLimit
          : (limits.limit - limits.static_bytes()).count() - 2 * copying;
  // The most that can be used, indexed by position.
  std::vector<int64_t> most(order.size() + 1, 0);
  const auto add = [&](int32_t first, int32_t end, int64_t amount) {
    most[static_cast<size_t>(first)] += amount;
    most[static_cast<size_t>(end)] -= amount;
  };
  for (size_t i = 0; i < spans.size(); ++i) {
    MemoryEffect largest;
    int64_t held = 0;
    int64_t backward = 0;
    const auto& candidates = memory.candidates(pairs[i]);
    for (size_t j = 0; j < candidates.size(); ++j) {
      const MemoryEffect& e = effect_of(candidates, j);
      largest.forward_alloc = std::max(largest.forward_alloc, e.forward_alloc);
      largest.weight_grad_free =
          std::max(largest.weight_grad_free, e.weight_grad_free);
      held = std::max(held, e.held().count());
      backward = std::max(backward, e.backward_peak().count());
    }
    const PairSpan& span = spans[i];
    add(span.forward, span.forward + 1, largest.forward_alloc.count());
    add(span.forward + 1, span.backward, held);
    add(span.backward, span.backward + 1, backward);
    add(span.backward + 1, span.weight_grad + 1,
        largest.weight_grad_free.count());
  }
  for (size_t p = 1; p < most.size(); ++p) most[p] += most[p - 1];
  // First row at or after the position.
  std::vector<int32_t> row_at(order.size() + 1, 0);
  for (size_t p = 0; p < order.size(); ++p) {
    row_at[p] = static_cast<int32_t>(program.limits.size());
    if (is_row[p] && most[p] + fixed[p] > capacity) {
      program.limits.push_back(capacity - fixed[p]);
    }
  }
  row_at.back() = static_cast<int32_t>(program.limits.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    IntegerProgram::Group& group = program.groups.emplace_back();
    const auto& candidates = memory.candidates(pairs[i]);
    for (size_t j = 0; j < candidates.size(); ++j) {
      const MemoryEffect& effect = effect_of(candidates, j);
      IntegerProgram::Option option{.cost = effect.extra.count()};
      for (IntegerProgram::Use use : UsesOf(effect, spans[i])) {
        use.first_row = row_at[static_cast<size_t>(use.first_row)];
        use.end_row = row_at[static_cast<size_t>(use.end_row)];
        if (use.first_row < use.end_row) option.uses.push_back(use);
      }
      group.push_back(std::move(option));
    }
  }
  return program;
}

}  // namespace pipeloom::planner
