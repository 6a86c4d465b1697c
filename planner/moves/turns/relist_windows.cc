#include "planner/moves/turns/relist_windows.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace pipeloom::planner {
namespace {

// Tasks of a window: at least so many, doubled up to so many times. Tries in a
// window. Chosen, like the share of turns in the table of moves, on the 22
// limited problems of 1,000 and more tasks of `pipeloom bench --random
// train:130`; windows of twice the tasks gain less.
constexpr int64_t kSmallest = 24;
constexpr int64_t kDoublings = 4;
constexpr int64_t kTries = 6;
// Tasks of a sweep that cost as much as a task of a try.
constexpr int64_t kCost = 10;

}  // namespace

WindowLister::WindowLister(const FlatGraph& graph)
    : graph_(&graph),
      job_of_task_(static_cast<size_t>(graph.num_tasks), -1),
      rank_of_rank_(static_cast<size_t>(graph.num_ranks), -1) {}

void WindowLister::Start(absl::Span<const int32_t> sequence) {
  const FlatGraph& g = *graph_;
  const auto n = static_cast<size_t>(g.num_tasks);
  sequence_.assign(sequence.begin(), sequence.end());
  end_.assign(n, 0);
  tail_.assign(n, 0);
  held_.assign(n, 0);
  previous_.assign(n, -1);
  next_.assign(n, -1);
  Refresh();
  // In the order of starts, so that windows are short in time.
  std::stable_sort(sequence_.begin(), sequence_.end(),
                   [&](int32_t a, int32_t b) {
                     return end_[a] - g.duration[a] < end_[b] - g.duration[b];
                   });
}

void WindowLister::Refresh() {
  const FlatGraph& g = *graph_;
  std::vector<int32_t> last(static_cast<size_t>(g.num_ranks), -1);
  for (const int32_t t : sequence_) {
    const int32_t p = last[g.rank[t]];
    last[g.rank[t]] = t;
    previous_[t] = p;
    next_[t] = -1;
    int64_t start = 0;
    held_[t] = 0;
    if (p >= 0) {
      next_[p] = t;
      start = end_[p];
      held_[t] = held_[p] + g.alloc[p] - g.free[p];
    }
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      start = std::max(start, end_[g.pred[e]] + g.pred_delay[e]);
    }
    end_[t] = start + g.duration[t];
  }
  time_ = 0;
  for (size_t i = sequence_.size(); i-- > 0;) {
    const int32_t t = sequence_[i];
    int64_t rest = next_[t] >= 0 ? tail_[next_[t]] : g.epilogue[g.rank[t]];
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      rest = std::max(rest, g.succ_delay[e] + tail_[g.succ[e]]);
    }
    tail_[t] = g.duration[t] + rest;
    time_ = std::max(time_, end_[t] + rest);
  }
}

bool WindowLister::Choose(size_t begin, size_t size) {
  const FlatGraph& g = *graph_;
  begin_ = begin;
  jobs_.clear();
  ranks_.clear();
  const absl::Span<const int32_t> window =
      absl::MakeConstSpan(sequence_).subspan(begin, size);
  for (const int32_t t : window) {
    int32_t& index = rank_of_rank_[g.rank[t]];
    const int64_t held = held_[t] + g.alloc[t] - g.free[t];
    const int64_t after =
        next_[t] >= 0 ? tail_[next_[t]] : g.epilogue[g.rank[t]];
    if (index < 0) {
      index = static_cast<int32_t>(ranks_.size());
      const int32_t p = previous_[t];
      ranks_.push_back({.free_at = {p >= 0 ? end_[p] : 0, after},
                        .held = {held_[t], held},
                        .capacity = g.capacity[g.rank[t]]});
    }
    Rank& rank = ranks_[index];
    rank.free_at[1] = after;
    rank.held[1] = held;
    job_of_task_[t] = static_cast<int32_t>(jobs_.size());
    jobs_.push_back({.task = t,
                     .rank = index,
                     .duration = g.duration[t],
                     .first = end_[t] - g.duration[t]});
  }
  int64_t longest = 0;
  for (int side = 0; side < 2; ++side) {
    edges_[side].clear();
    edge_offset_[side].assign(1, 0);
  }
  for (Job& job : jobs_) {
    const int32_t t = job.task;
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      const int32_t from = job_of_task_[g.pred[e]];
      if (from >= 0) {
        edges_[1].push_back({.to = from, .delay = g.pred_delay[e]});
      } else {
        job.head[0] = std::max(job.head[0], end_[g.pred[e]] + g.pred_delay[e]);
      }
    }
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      const int32_t to = job_of_task_[g.succ[e]];
      if (to >= 0) {
        edges_[0].push_back({.to = to, .delay = g.succ_delay[e]});
      } else {
        job.head[1] = std::max(job.head[1], tail_[g.succ[e]] + g.succ_delay[e]);
      }
    }
    for (int side = 0; side < 2; ++side) {
      edge_offset_[side].push_back(static_cast<int32_t>(edges_[side].size()));
    }
    longest = std::max(longest, end_[t] + tail_[t] - job.duration);
  }
  // The time behind a job in each direction, without the order on its rank
  // inside the window.
  const auto n = static_cast<int32_t>(jobs_.size());
  for (int side = 0; side < 2; ++side) {
    for (int32_t i = 0; i < n; ++i) {
      const int32_t j = side == 0 ? n - 1 - i : i;
      Job& job = jobs_[j];
      int64_t rest =
          std::max(job.head[1 - side], ranks_[job.rank].free_at[1 - side]);
      for (int32_t e = edge_offset_[side][j]; e < edge_offset_[side][j + 1];
           ++e) {
        const Edge& edge = edges_[side][e];
        rest = std::max(rest, edge.delay + jobs_[edge.to].tail[side]);
      }
      job.tail[side] = job.duration + rest;
    }
  }
  for (const int32_t t : window) {
    job_of_task_[t] = -1;
    rank_of_rank_[g.rank[t]] = -1;
  }
  return longest >= time_;
}

inline bool WindowLister::HasRoom(int32_t job, const OpenRank& rank,
                                  int side) const {
  const int32_t t = jobs_[job].task;
  const int64_t bytes = side == 0 ? graph_->alloc[t] : graph_->free[t];
  if (bytes == 0) return true;
  const Open& open = open_[job];
  return rank.held + bytes <= ranks_[jobs_[job].rank].capacity &&
         (open.turn < 0 || open.turn == rank.next_turn);
}

inline void WindowLister::SetSoonest(int32_t r, int side) {
  OpenRank& rank = open_ranks_[r];
  rank.soonest = kNoLimit;
  for (const int32_t j : ready_[r]) {
    const int64_t start = std::max(open_[j].head, rank.free_at);
    if (start < rank.soonest && HasRoom(j, rank, side)) rank.soonest = start;
  }
}

int64_t WindowLister::Try(const Style& style, int64_t give_up, Random& random) {
  const FlatGraph& g = *graph_;
  const int side = style.backwards ? 1 : 0;
  const auto n = static_cast<int32_t>(jobs_.size());
  const auto ranks = static_cast<int32_t>(ranks_.size());
  open_.assign(jobs_.size(), {});
  open_ranks_.assign(ranks_.size(), {});
  if (ready_.size() < ranks_.size()) ready_.resize(ranks_.size());
  for (int32_t r = 0; r < ranks; ++r) {
    open_ranks_[r].free_at = ranks_[r].free_at[side];
    open_ranks_[r].held = ranks_[r].held[side];
    ready_[r].clear();
  }
  for (int32_t i = 0; i < n; ++i) {
    const int32_t j = side == 0 ? i : n - 1 - i;
    const Job& job = jobs_[j];
    Open& open = open_[j];
    open.head = job.head[side];
    open.missing = edge_offset_[1 - side][j + 1] - edge_offset_[1 - side][j];
    const int64_t by_sequence =
        side == 0 ? job.first : -job.first - job.duration;
    open.key =
        static_cast<double>(style.by_tail ? -job.tail[side] : by_sequence) +
        (style.noise > 0 ? style.noise * (2 * random.Unit() - 1) : 0);
    const int64_t bytes = side == 0 ? g.alloc[job.task] : g.free[job.task];
    if (style.keeps_takers && bytes > 0 &&
        ranks_[job.rank].capacity < kNoLimit) {
      open.turn = open_ranks_[job.rank].next_turn++;
    }
    if (open.missing == 0) ready_[job.rank].push_back(j);
  }
  for (int32_t r = 0; r < ranks; ++r) {
    open_ranks_[r].next_turn = 0;
    SetSoonest(r, side);
  }
  order_.clear();
  int64_t longest = 0;
  for (int32_t done = 0; done < n; ++done) {
    int32_t r = 0;
    for (int32_t k = 1; k < ranks; ++k) {
      if (open_ranks_[k].soonest < open_ranks_[r].soonest) r = k;
    }
    OpenRank& rank = open_ranks_[r];
    if (rank.soonest >= kNoLimit) return kNoLimit;
    std::vector<int32_t>& ready = ready_[r];
    // The best of those that start now; then one that is better and starts
    // while it would run.
    size_t best = ready.size();
    for (size_t i = 0; i < ready.size(); ++i) {
      const int32_t j = ready[i];
      if (std::max(open_[j].head, rank.free_at) > rank.soonest ||
          !HasRoom(j, rank, side)) {
        continue;
      }
      if (best == ready.size() || open_[j].key < open_[ready[best]].key) {
        best = i;
      }
    }
    if (style.patience > 0) {
      const int64_t until =
          rank.soonest + static_cast<int64_t>(
                             style.patience *
                             static_cast<double>(jobs_[ready[best]].duration));
      for (size_t i = 0; i < ready.size(); ++i) {
        const int32_t j = ready[i];
        if (open_[j].key < open_[ready[best]].key && open_[j].head < until &&
            HasRoom(j, rank, side)) {
          best = i;
        }
      }
    }
    const int32_t j = ready[best];
    ready[best] = ready.back();
    ready.pop_back();
    const Job& job = jobs_[j];
    const int64_t start = std::max(open_[j].head, rank.free_at);
    const int64_t end = start + job.duration;
    longest = std::max(longest, start + job.tail[side]);
    if (longest >= give_up) return kNoLimit;
    rank.free_at = end;
    const int64_t net = g.alloc[job.task] - g.free[job.task];
    rank.held += side == 0 ? net : -net;
    if (open_[j].turn >= 0) ++rank.next_turn;
    order_.push_back(job.task);
    for (int32_t e = edge_offset_[side][j]; e < edge_offset_[side][j + 1];
         ++e) {
      const Edge& edge = edges_[side][e];
      Open& next = open_[edge.to];
      next.head = std::max(next.head, end + edge.delay);
      if (--next.missing > 0) continue;
      const int32_t other = jobs_[edge.to].rank;
      ready_[other].push_back(edge.to);
      if (other == r) continue;
      OpenRank& there = open_ranks_[other];
      if (HasRoom(edge.to, there, side)) {
        there.soonest =
            std::min(there.soonest, std::max(next.head, there.free_at));
      }
    }
    SetSoonest(r, side);
  }
  if (side == 1) std::reverse(order_.begin(), order_.end());
  return longest;
}

void WindowLister::Accept() {
  std::copy(order_.begin(), order_.end(),
            sequence_.begin() + static_cast<int64_t>(begin_));
  Refresh();
}

bool RandomWindows::Relist(const std::function<bool()>& may_go_on,
                           const std::function<void(int64_t, int64_t)>& spend,
                           WindowLister* lister, Random& random) const {
  const auto n = static_cast<int64_t>(lister->sequence().size());
  const int64_t least = std::min(n, kSmallest << random.Below(kDoublings + 1));
  const int64_t size = std::min(n, least + random.Below(least));
  const int64_t begin = random.Below(n - size + 1);
  const bool may_gain =
      lister->Choose(static_cast<size_t>(begin), static_cast<size_t>(size));
  spend(0, 1 + size * kCost / n);
  if (!may_gain) return false;
  for (int64_t i = 0; i < kTries && may_go_on(); ++i) {
    const int64_t reach = random.Below(5);
    const WindowLister::Style style = {
        .backwards = random.Below(2) == 0,
        .by_tail = random.Below(2) == 0,
        .noise = reach == 0 ? 0
                            : 4 * mean_duration /
                                  static_cast<double>(int64_t{1} << reach),
        .patience = 0.5 * static_cast<double>(random.Below(3)),
        .keeps_takers = is_limited && random.Below(2) == 0};
    const int64_t time = lister->Try(style, lister->time() + 1, random);
    spend(1, 1 + size * kCost / n);
    if (time >= kNoLimit || lister->IsSame()) continue;
    lister->Accept();
    spend(0, SearchState::kTabuCost);
    return true;
  }
  return false;
}

void RelistWindows::Run(const SearchBudget& budget) {
  SearchState& s = state();
  if (!begun_ || lister_.time() != s.since_start().time) {
    begun_ = true;
    lister_.Start(s.since_start().sequence);
    s.Spend(0, SearchState::kTabuCost);
  }
  const RandomWindows windows{.mean_duration = s.mean_duration(),
                              .is_limited = s.is_limited()};
  const auto may_go_on = [&] { return s.MayGoOn(budget); };
  const auto spend = [&](int64_t evaluations, int64_t cost) {
    s.Spend(evaluations, cost);
  };
  while (s.RoundMayGoOn(budget)) {
    if (windows.Relist(may_go_on, spend, &lister_, s.random())) {
      s.Keep(lister_.time(), lister_.sequence());
    }
  }
}

}  // namespace pipeloom::planner
