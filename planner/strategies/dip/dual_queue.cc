#include "planner/strategies/dip/dual_queue.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace pipeloom::planner {

DualQueue::DualQueue(const FlatGraph& graph)
    : graph_(&graph),
      guard_(graph),
      ranks_(static_cast<size_t>(graph.num_ranks)),
      missing_(static_cast<size_t>(graph.num_tasks)),
      arrival_(static_cast<size_t>(graph.num_tasks)),
      start_(static_cast<size_t>(graph.num_tasks)) {}

DualQueue::Choice DualQueue::BestOf(const Rank& rank, Queue queue,
                                    absl::Span<const int64_t> priority,
                                    bool all_fresh) const {
  // Arrived tasks compare by priority, others by arrival first.
  const auto key = [&](int32_t t) {
    const auto task = static_cast<size_t>(t);
    return std::tuple(std::max(arrival_[task], rank.last_end), priority[task],
                      t);
  };
  Choice best;
  int32_t fresh = -1;  // The best task whose microbatch has not begun.
  for (const int32_t t : rank.queue[queue]) {
    if (queue == kForwards && !all_fresh && !guard_.IsStarted(t)) {
      if (fresh < 0 || key(t) < key(fresh)) fresh = t;
      continue;
    }
    if ((best.task < 0 || key(t) < key(best.task)) && guard_.Admits(t)) {
      best.task = t;
    }
  }
  if (fresh >= 0 && (best.task < 0 || key(fresh) < key(best.task)) &&
      guard_.Admits(fresh)) {
    best.task = fresh;
  }
  if (best.task >= 0) {
    best.start =
        std::max(arrival_[static_cast<size_t>(best.task)], rank.last_end);
  }
  return best;
}

void DualQueue::Decide(Rank& rank, absl::Span<const int64_t> priority,
                       bool all_fresh) const {
  const Choice forward = BestOf(rank, kForwards, priority, all_fresh);
  const Choice backward = BestOf(rank, kBackwards, priority, all_fresh);
  rank.stale = false;
  if (forward.task < 0 || backward.task < 0) {
    rank.next = forward.task < 0 ? backward : forward;
  } else if (forward.start == rank.last_end &&
             backward.start == rank.last_end) {
    rank.next = rank.last == kForwards ? backward : forward;
  } else {
    rank.next = forward.start < backward.start ? forward : backward;
  }
}

int64_t DualQueue::Run(absl::Span<const int64_t> priority) {
  PIPELOOM_DCHECK(CanRun());
  const FlatGraph& g = *graph_;
  guard_.Reset({}, reserve_);
  sequence_.clear();
  for (Rank& rank : ranks_) {
    rank.queue[kForwards].clear();
    rank.queue[kBackwards].clear();
    rank.last_end = 0;
    rank.last = kBackwards;
    rank.stale = true;
  }
  const auto arrive = [&](int32_t t) {
    Rank& rank = ranks_[static_cast<size_t>(g.rank[static_cast<size_t>(t)])];
    const bool is_forward = g.pass[static_cast<size_t>(t)] == Pass::kForward;
    rank.queue[is_forward ? kForwards : kBackwards].push_back(t);
    rank.stale = true;
  };
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    const auto task = static_cast<size_t>(t);
    missing_[task] = g.pred_offset[task + 1] - g.pred_offset[task];
    arrival_[task] = 0;
    if (missing_[task] == 0) arrive(t);
  }
  const auto find_soonest = [&]() -> Rank* {
    Rank* soonest = nullptr;
    for (Rank& rank : ranks_) {
      if (rank.stale) Decide(rank, priority, /*all_fresh=*/false);
      if (rank.next.task < 0) continue;
      if (soonest == nullptr || rank.next.start < soonest->next.start) {
        soonest = &rank;
      }
    }
    return soonest;
  };
  while (sequence_.size() < static_cast<size_t>(g.num_tasks)) {
    Rank* soonest = find_soonest();
    if (soonest == nullptr) {
      // Where parts of a microbatch run in parallel, the guard may admit only
      // the part that it would begin with, and that need not be the best by
      // priority.
      for (Rank& rank : ranks_) Decide(rank, priority, /*all_fresh=*/true);
      soonest = find_soonest();
    }
    PIPELOOM_CHECK(soonest != nullptr);
    const Choice placed = soonest->next;
    if (!guard_.Admits(placed.task)) {
      // Microbatches that have begun on other ranks in the meantime go first
      // here too, before this task's if it had not begun when the rank decided.
      soonest->stale = true;
      continue;
    }
    const auto task = static_cast<size_t>(placed.task);
    guard_.Start(placed.task);
    const Queue queue = g.pass[task] == Pass::kForward ? kForwards : kBackwards;
    std::vector<int32_t>& from = soonest->queue[queue];
    from.erase(std::find(from.begin(), from.end(), placed.task));
    soonest->last = queue;
    soonest->last_end = placed.start + g.duration[task];
    soonest->stale = true;
    start_[task] = placed.start;
    sequence_.push_back(placed.task);
    for (auto e = static_cast<size_t>(g.succ_offset[task]);
         e < static_cast<size_t>(g.succ_offset[task + 1]); ++e) {
      const auto next = static_cast<size_t>(g.succ[e]);
      arrival_[next] =
          std::max(arrival_[next], soonest->last_end + g.succ_delay[e]);
      if (--missing_[next] == 0) arrive(g.succ[e]);
    }
  }
  int64_t finish = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    finish = std::max(finish, ranks_[r].last_end + g.epilogue[r]);
  }
  return finish;
}

}  // namespace pipeloom::planner
