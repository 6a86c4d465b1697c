#include "planner/moves/turns/solve_windows.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace pipeloom::planner {
namespace {

// Tasks of the first windows and of the next ones, which are tried when no
// smaller window can be improved; nodes of a window.
constexpr int32_t kSizes[] = {10, 16, WindowSolver::kMostTasks};
constexpr int64_t kMostNodes = 3000;
// Nodes that cost as much as a sweep over as many tasks.
constexpr int64_t kTasksOfNode = 12;

}  // namespace

WindowSolver::WindowSolver(const FlatGraph& graph)
    : graph_(&graph),
      job_of_task_(static_cast<size_t>(graph.num_tasks), -1),
      rank_of_rank_(static_cast<size_t>(graph.num_ranks), -1) {}

bool WindowSolver::HasRoom(const Job& job) const {
  return ranks_[job.rank].held + graph_->alloc[job.task] <= capacity_[job.rank];
}

bool WindowSolver::Solve(absl::Span<const int32_t> sequence, size_t begin,
                         int32_t size, absl::Span<const int64_t> end,
                         absl::Span<const int64_t> tail, int64_t most) {
  const FlatGraph& g = *graph_;
  jobs_.clear();
  ranks_.clear();
  capacity_.clear();
  path_.clear();
  order_.clear();
  out_.assign(static_cast<size_t>(size), {});
  nodes_ = 0;
  most_ = most;
  const absl::Span<const int32_t> window =
      sequence.subspan(begin, static_cast<size_t>(size));
  std::vector<int32_t> open;  // Ranks of the window.
  for (const int32_t t : window) {
    int32_t& index = rank_of_rank_[g.rank[t]];
    if (index < 0) {
      index = static_cast<int32_t>(ranks_.size());
      ranks_.push_back({});
      capacity_.push_back(g.capacity[g.rank[t]]);
      open.push_back(g.rank[t]);
    }
    job_of_task_[t] = static_cast<int32_t>(jobs_.size());
    jobs_.push_back({.task = t, .rank = index, .duration = g.duration[t]});
  }
  for (size_t i = 0; i < begin; ++i) {
    const int32_t t = sequence[i];
    const int32_t index = rank_of_rank_[g.rank[t]];
    if (index < 0) continue;
    ranks_[index].free_at = end[t];
    ranks_[index].held += g.alloc[t] - g.free[t];
  }
  // The time after all tasks of the window on each of its ranks.
  std::vector<int64_t> after(ranks_.size());
  for (const int32_t r : open) after[rank_of_rank_[r]] = g.epilogue[r];
  std::vector<int32_t> waiting = open;
  for (size_t i = begin + window.size();
       i < sequence.size() && !waiting.empty(); ++i) {
    const auto at =
        std::find(waiting.begin(), waiting.end(), g.rank[sequence[i]]);
    if (at == waiting.end()) continue;
    after[rank_of_rank_[*at]] = tail[sequence[i]];
    waiting.erase(at);
  }
  int64_t now = 0;
  for (size_t j = 0; j < jobs_.size(); ++j) {
    Job& job = jobs_[j];
    job.rest = after[job.rank];
    for (int32_t e = g.pred_offset[job.task]; e < g.pred_offset[job.task + 1];
         ++e) {
      if (job_of_task_[g.pred[e]] >= 0) {
        ++job.missing;
      } else {
        job.head = std::max(job.head, end[g.pred[e]] + g.pred_delay[e]);
      }
    }
    for (int32_t e = g.succ_offset[job.task]; e < g.succ_offset[job.task + 1];
         ++e) {
      const int32_t to = job_of_task_[g.succ[e]];
      if (to >= 0) {
        out_[j].push_back({static_cast<int32_t>(j), to, g.succ_delay[e]});
      } else {
        job.rest = std::max(job.rest, g.succ_delay[e] + tail[g.succ[e]]);
      }
    }
    now = std::max(now, end[job.task] + job.rest);
  }
  // Within the window, what follows a task counts too.
  for (size_t j = jobs_.size(); j-- > 0;) {
    for (const Edge& edge : out_[j]) {
      const Job& next = jobs_[edge.to];
      jobs_[j].rest =
          std::max(jobs_[j].rest, edge.delay + next.duration + next.rest);
    }
  }
  best_ = now;
  Enter(0, 0);
  for (const int32_t t : window) job_of_task_[t] = -1;
  for (const int32_t r : open) rank_of_rank_[r] = -1;
  return !order_.empty();
}

void WindowSolver::Enter(int32_t depth, int64_t longest) {
  if (++nodes_ >= most_) return;
  if (depth == static_cast<int32_t>(jobs_.size())) {
    best_ = longest;
    order_.clear();
    for (const int32_t j : path_) order_.push_back(jobs_[j].task);
    return;
  }
  // The bound: each task as early as it may be, and each rank's rest of work.
  int64_t first_end = std::numeric_limits<int64_t>::max();
  const Job* first = nullptr;
  struct Load {
    int64_t start = std::numeric_limits<int64_t>::max();
    int64_t work = 0;
    int64_t rest = std::numeric_limits<int64_t>::max();
  };
  Load loads[kMostTasks];
  for (const Job& job : jobs_) {
    if (job.done) continue;
    const int64_t start = std::max(job.head, ranks_[job.rank].free_at);
    const int64_t end = start + job.duration;
    if (end + job.rest >= best_) return;
    Load& load = loads[job.rank];
    load.start = std::min(load.start, start);
    load.work += job.duration;
    load.rest = std::min(load.rest, job.rest);
    if (job.missing == 0 && end < first_end && HasRoom(job)) {
      first_end = end;
      first = &job;
    }
  }
  if (first == nullptr) return;  // No task has room.
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (loads[r].work > 0 &&
        loads[r].start + loads[r].work + loads[r].rest >= best_) {
      return;
    }
  }
  // Longest rest first: it is the most likely to be best.
  int32_t candidates[kMostTasks];
  int32_t count = 0;
  for (size_t j = 0; j < jobs_.size(); ++j) {
    const Job& job = jobs_[j];
    if (job.done || job.missing > 0 || job.rank != first->rank) continue;
    const int64_t start = std::max(job.head, ranks_[job.rank].free_at);
    if (&job == first || (start < first_end && HasRoom(job))) {
      candidates[count++] = static_cast<int32_t>(j);
    }
  }
  std::stable_sort(candidates, candidates + count, [&](int32_t a, int32_t b) {
    return jobs_[a].rest + jobs_[a].duration >
           jobs_[b].rest + jobs_[b].duration;
  });
  for (int32_t k = 0; k < count && nodes_ < most_; ++k) {
    Job& job = jobs_[candidates[k]];
    Rank& rank = ranks_[job.rank];
    const Rank before = rank;
    const int64_t end = std::max(job.head, rank.free_at) + job.duration;
    rank.free_at = end;
    rank.held += graph_->alloc[job.task] - graph_->free[job.task];
    job.done = true;
    path_.push_back(candidates[k]);
    const std::vector<Edge>& out = out_[candidates[k]];
    std::vector<int64_t> heads;
    for (const Edge& edge : out) {
      heads.push_back(jobs_[edge.to].head);
      jobs_[edge.to].head = std::max(jobs_[edge.to].head, end + edge.delay);
      --jobs_[edge.to].missing;
    }
    Enter(depth + 1, std::max(longest, end + job.rest));
    for (size_t e = out.size(); e-- > 0;) {
      jobs_[out[e].to].head = heads[e];
      ++jobs_[out[e].to].missing;
    }
    path_.pop_back();
    job.done = false;
    rank = before;
  }
}

void SolveWindows::Prepare() {
  SearchState& s = state();
  Retimer& retimer = s.retimer();
  sequence_ = s.since_start().sequence;
  retimer.Retime(sequence_);
  // Sorted by start, so that a window has tasks that are close in time.
  std::stable_sort(sequence_.begin(), sequence_.end(),
                   [&](int32_t a, int32_t b) {
                     return retimer.start(a) < retimer.start(b);
                   });
  Refresh();
}

void SolveWindows::Refresh() {
  const FlatGraph& g = state().graph();
  Retimer& retimer = state().retimer();
  time_ = retimer.Retime(sequence_);
  end_.assign(retimer.end().begin(), retimer.end().end());
  tail_.assign(end_.size(), 0);
  std::vector<int64_t> after(g.epilogue.begin(), g.epilogue.end());
  for (size_t i = sequence_.size(); i-- > 0;) {
    const int32_t t = sequence_[i];
    int64_t rest = after[g.rank[t]];
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      rest = std::max(rest, g.succ_delay[e] + tail_[g.succ[e]]);
    }
    tail_[t] = g.duration[t] + rest;
    after[g.rank[t]] = tail_[t];
  }
}

void SolveWindows::Run(const SearchBudget& budget) {
  SearchState& s = state();
  const int64_t tasks = s.graph().num_tasks;
  while (s.RoundMayGoOn(budget)) {
    if (time_ != s.since_start().time) {
      Prepare();
      s.Spend(0, SearchState::kTabuCost);
      useless_ = 0;
      size_ = 0;
      next_ = static_cast<size_t>(s.random().Below(tasks));
    }
    if (useless_ >= sequence_.size()) {
      // Windows of this size can gain nothing.
      if (size_ + 1 == std::size(kSizes)) return;
      ++size_;
      useless_ = 0;
    }
    const auto size =
        static_cast<size_t>(std::min<int64_t>(kSizes[size_], tasks));
    if (next_ + size > sequence_.size()) {
      useless_ += sequence_.size() - next_;
      next_ = 0;
    }
    const bool better = solver_.Solve(
        sequence_, next_, static_cast<int32_t>(size), end_, tail_, kMostNodes);
    s.Spend(1, 1 + solver_.nodes() * kTasksOfNode / tasks);
    if (better) {
      std::copy(solver_.order().begin(), solver_.order().end(),
                sequence_.begin() + static_cast<int64_t>(next_));
      // Other paths may be as long as this window's was.
      Refresh();
      s.Spend(0, SearchState::kTabuCost);
      if (time_ < s.since_start().time) {
        s.Keep(time_, sequence_);
        useless_ = 0;
        continue;
      }
    }
    useless_ += (size + 1) / 2;
    next_ += (size + 1) / 2;
  }
}

}  // namespace pipeloom::planner
