#include "planner/memory/rank_program.h"

#include <algorithm>

#include "base/check.h"
#include "planner/core/flat_graph.h"

namespace pipeloom::planner {

CandidateTables::CandidateTables(const partition::StepMemory& memory) {
  for (const auto& candidates : memory.lists) {
    List& list = lists.emplace_back();
    for (const partition::MemoryCandidate& c : candidates) {
      list.forward.push_back(c.effect.forward_alloc.count());
      list.held.push_back(c.effect.held().count());
      list.backward.push_back(c.effect.backward_peak().count());
      list.after.push_back(c.effect.weight_grad_free.count());
      list.most_forward = std::max(list.most_forward, list.forward.back());
      list.most_held = std::max(list.most_held, list.held.back());
      list.most_given_back = std::max(list.most_given_back,
                                      list.forward.back() - list.held.back());
      list.least_forward = std::min(list.least_forward, list.forward.back());
      list.least_backward = std::min(list.least_backward,
                                     list.backward.back() - list.held.back());
      list.most_backward = std::max(list.most_backward, list.backward.back());
      list.most_after = std::max(list.most_after, list.after.back());
    }
  }
}

void RankProgramBuilder::Build(
    const StageGraph& graph, const partition::StepMemory& memory,
    const CandidateTables& tables, RankId rank,
    const std::vector<StagePairId>& pairs,
    const IdVector<StagePairId, std::vector<int64_t>>& costs,
    const std::vector<TaskId>& order, IntegerProgramSolver* solver) {
  const size_t num = order.size();
  position_.resize(static_cast<size_t>(graph.num_tasks()));
  is_row_.assign(num, 1);
  fixed_.resize(num);
  least_.resize(num);
  most_.assign(num + 1, 0);
  // For which starts are rows, see MakeRankProgram.
  for (size_t p = 0; p < num; ++p) {
    const Task& task = graph.task(order[p]);
    position_[static_cast<size_t>(order[p].value())] = static_cast<int32_t>(p);
    if (task.pass == Pass::kWeightGrad && p > 0 &&
        graph.task(order[p - 1]).pass != Pass::kForward) {
      is_row_[p] = 0;
    }
    fixed_[p] = least_[p] = task.alloc.count();
  }
  const auto at = [&](TaskId t) {
    return position_[static_cast<size_t>(t.value())];
  };
  const auto add = [&](int32_t first, int32_t end, int64_t amount) {
    most_[static_cast<size_t>(first)] += amount;
    most_[static_cast<size_t>(end)] -= amount;
  };
  spans_.clear();
  for (const StagePairId id : pairs) {
    const partition::StagePair& pair = memory.pairs[id];
    Span span{.forward = at(pair.forward), .backward = at(pair.backward)};
    span.last =
        pair.weight_grad.is_none() ? span.backward : at(pair.weight_grad);
    PIPELOOM_CHECK(span.forward < span.backward && span.backward <= span.last);
    for (const int32_t p : {span.forward, span.backward, span.last}) {
      fixed_[static_cast<size_t>(p)] = 0;
    }
    const CandidateTables::List& list =
        tables.lists[static_cast<size_t>(memory.list_of[id])];
    least_[static_cast<size_t>(span.last)] = 0;
    least_[static_cast<size_t>(span.forward)] = list.least_forward;
    least_[static_cast<size_t>(span.backward)] = list.least_backward;
    add(span.forward, span.forward + 1, list.most_forward);
    add(span.forward + 1, span.backward, list.most_held);
    add(span.backward, span.backward + 1, list.most_backward);
    if (span.last > span.backward) {
      add(span.backward + 1, span.last + 1, list.most_after);
    }
    spans_.push_back(span);
  }
  // The start of a forward is implied by the next start if that takes at least
  // what the forward gives back.
  for (size_t i = 0; i < spans_.size(); ++i) {
    const auto p = static_cast<size_t>(spans_[i].forward);
    const CandidateTables::List& list =
        tables.lists[static_cast<size_t>(memory.list_of[pairs[i]])];
    if (p + 1 < num && list.most_given_back <= least_[p + 1]) is_row_[p] = 0;
  }
  const RankMemory& limits = graph.rank(rank).memory;
  const int64_t capacity = limits.limit == Bytes(0)
                               ? kNoLimit
                               : (limits.limit - limits.static_bytes()).count();
  limits_.clear();
  row_at_.resize(num + 1);
  int64_t most = 0;
  for (size_t p = 0; p < num; ++p) {
    most += most_[p];
    row_at_[p] = static_cast<int32_t>(limits_.size());
    if (is_row_[p] != 0 && most + fixed_[p] > capacity) {
      limits_.push_back(capacity - fixed_[p]);
    }
  }
  row_at_[num] = static_cast<int32_t>(limits_.size());
  solver->Begin(limits_);
  for (size_t i = 0; i < spans_.size(); ++i) {
    const CandidateTables::List& list =
        tables.lists[static_cast<size_t>(memory.list_of[pairs[i]])];
    const auto run = [&](int32_t first, int32_t end,
                         const std::vector<int64_t>& amounts) {
      const int32_t first_row = row_at_[static_cast<size_t>(first)];
      const int32_t end_row = row_at_[static_cast<size_t>(end)];
      if (first_row < end_row) solver->AddRun(first_row, end_row, amounts);
    };
    solver->AddGroup(costs[pairs[i]]);
    run(spans_[i].forward, spans_[i].forward + 1, list.forward);
    run(spans_[i].forward + 1, spans_[i].backward, list.held);
    run(spans_[i].backward, spans_[i].backward + 1, list.backward);
    if (spans_[i].last > spans_[i].backward) {
      run(spans_[i].backward + 1, spans_[i].last + 1, list.after);
    }
  }
}

}  // namespace pipeloom::planner
