// Which tasks are tried in a state (the set of done tasks, when each rank is
// free and when each open task arrives). Let c be the task that ends first if
// it starts at once, at C, on rank m. No task that is not ready, and none that
// waits for memory, starts before C.
// - If c cannot hinder anyone's memory (it holds no more afterwards than
//   before, or m's limit cannot be reached any more), then in any best schedule
//   whose next task on m starts at C or later, c can be put before that task.
//   So some best schedule continues m with c or with a ready task that starts
//   before C: only these are tried.
// - Otherwise, let C' be the first end among tasks that cannot hinder (infinite
//   if there are none). The first of the remaining tasks to start is ready, and
//   if it starts at C' or later, the task that ends at C' can be put before
//   all. So all ready tasks that start before C', on any rank, and that task
//   are tried.
// Both hold for any state and any way it was reached, which is why states with
// the same done set may be compared whatever order led to them.
#include "planner/search/exact_search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace pipeloom::planner {
namespace {

// The most integers of state times that are kept; beyond it new states are not
// remembered.
constexpr size_t kMaxKept = size_t{1} << 24;

class Search {
 public:
  Search(const FlatGraph& graph, const SearchBudget& budget)
      : g_(graph),
        budget_(budget),
        n_(graph.num_tasks),
        tail_(static_cast<size_t>(n_)),
        arrival_(static_cast<size_t>(n_), 0),
        head_(static_cast<size_t>(n_), 0),
        missing_(static_cast<size_t>(n_)),
        twin_before_(static_cast<size_t>(n_), -1),
        free_at_(static_cast<size_t>(graph.num_ranks), 0),
        held_(static_cast<size_t>(graph.num_ranks), 0),
        to_alloc_(static_cast<size_t>(graph.num_ranks), 0),
        by_tail_(static_cast<size_t>(graph.num_ranks)) {
    for (int32_t t = n_ - 1; t >= 0; --t) {
      tail_[t] = g_.epilogue[g_.rank[t]];
      for (int32_t e = g_.succ_offset[t]; e < g_.succ_offset[t + 1]; ++e) {
        const int32_t to = g_.succ[e];
        tail_[t] =
            std::max(tail_[t], g_.succ_delay[e] + g_.duration[to] + tail_[to]);
      }
    }
    for (int32_t t = 0; t < n_; ++t) {
      missing_[t] = g_.pred_offset[t + 1] - g_.pred_offset[t];
      to_alloc_[g_.rank[t]] += g_.alloc[t];
      by_tail_[g_.rank[t]].push_back(t);
    }
    for (std::vector<int32_t>& tasks : by_tail_) {
      std::stable_sort(tasks.begin(), tasks.end(), [&](int32_t a, int32_t b) {
        return tail_[a] > tail_[b];
      });
    }
    FindTwins();
  }

  ExactResult Run(int64_t upper_bound, std::vector<int32_t> incumbent) {
    best_ = upper_bound;
    best_sequence_ = std::move(incumbent);
    bool legal = true;
    int64_t finish = 0;
    for (int32_t r = 0; r < g_.num_ranks; ++r) {
      legal = legal && g_.capacity[r] >= 0;
      finish = std::max(finish, g_.epilogue[r]);
    }
    if (legal) Extend(0, finish);
    return {.sequence = std::move(best_sequence_),
            .step_time = best_,
            .proven = !stopped_,
            .nodes = nodes_};
  }

 private:
  // Searches below a state. Returns whether anything but the memory limits
  // ended the branches below it.
  bool Extend(uint64_t done, int64_t finish) {
    if (static_cast<int32_t>(sequence_.size()) == n_) {
      if (finish < best_) {
        best_ = finish;
        best_sequence_ = sequence_;
      }
      return true;
    }
    if (stopped_ || budget_.Exhausted(nodes_)) {
      stopped_ = true;
      return true;
    }
    ++nodes_;
    if (dead_.contains(done)) return false;
    if (Bound(done, finish) >= best_) return true;
    if (IsDominated(done, finish)) return true;

    bool alive = false;
    for (const Choice& choice : Choices(done)) {
      alive = Try(done, finish, choice.task) || alive;
    }
    if (!alive) dead_.insert(done);
    return alive;
  }

  bool Try(uint64_t done, int64_t finish, int32_t t) {
    const int32_t r = g_.rank[t];
    const int64_t was_free = free_at_[r];
    const int64_t end = std::max(was_free, arrival_[t]) + g_.duration[t];
    for (int32_t e = g_.succ_offset[t]; e < g_.succ_offset[t + 1]; ++e) {
      const int32_t to = g_.succ[e];
      trail_.push_back(arrival_[to]);
      arrival_[to] = std::max(arrival_[to], end + g_.succ_delay[e]);
      --missing_[to];
    }
    free_at_[r] = end;
    held_[r] += g_.alloc[t] - g_.free[t];
    to_alloc_[r] -= g_.alloc[t];
    sequence_.push_back(t);
    const bool alive =
        Extend(done | uint64_t{1} << t, std::max(finish, end + g_.epilogue[r]));
    sequence_.pop_back();
    to_alloc_[r] += g_.alloc[t];
    held_[r] -= g_.alloc[t] - g_.free[t];
    free_at_[r] = was_free;
    for (int32_t e = g_.succ_offset[t + 1]; e-- > g_.succ_offset[t];) {
      ++missing_[g_.succ[e]];
      arrival_[g_.succ[e]] = trail_.back();
      trail_.pop_back();
    }
    return alive;
  }

  struct Choice {
    int64_t urgency = 0;  // Minus the earliest end of its longest chain.
    int64_t start = 0;
    int32_t task = -1;
  };
  std::vector<Choice> Choices(uint64_t done) const {
    std::vector<Choice> ready;
    const auto end_of = [&](const Choice& c) {
      return c.start + g_.duration[c.task];
    };
    const Choice* first = nullptr;
    const Choice* first_safe = nullptr;
    for (int32_t t = 0; t < n_; ++t) {
      if ((done >> t & 1) != 0 || missing_[t] > 0) continue;
      const int32_t r = g_.rank[t];
      if (held_[r] + g_.alloc[t] > g_.capacity[r]) continue;
      if (twin_before_[t] >= 0 && (done >> twin_before_[t] & 1) == 0) continue;
      const int64_t start = std::max(free_at_[r], arrival_[t]);
      ready.push_back({.urgency = -(start + g_.duration[t] + tail_[t]),
                       .start = start,
                       .task = t});
    }
    for (const Choice& c : ready) {
      const int32_t r = g_.rank[c.task];
      const bool safe = g_.alloc[c.task] <= g_.free[c.task] ||
                        held_[r] + to_alloc_[r] <= g_.capacity[r];
      if (first == nullptr || end_of(c) < end_of(*first)) first = &c;
      if (safe && (first_safe == nullptr || end_of(c) < end_of(*first_safe))) {
        first_safe = &c;
      }
    }
    std::vector<Choice> choices;
    if (first == nullptr) return choices;
    const bool one_rank =
        first_safe != nullptr && end_of(*first_safe) == end_of(*first);
    for (const Choice& c : ready) {
      if (first_safe != nullptr && c.task != first_safe->task) {
        if (c.start >= end_of(*first_safe)) continue;
        if (one_rank && g_.rank[c.task] != g_.rank[first_safe->task]) continue;
      }
      choices.push_back(c);
    }
    std::sort(choices.begin(), choices.end(),
              [](const Choice& a, const Choice& b) {
                return std::tie(a.start, a.urgency, a.task) <
                       std::tie(b.start, b.urgency, b.task);
              });
    return choices;
  }

  // Returns the state's bound; also sets head_ of all open tasks.
  int64_t Bound(uint64_t done, int64_t finish) {
    int64_t bound = finish;
    for (int32_t t = 0; t < n_; ++t) {
      if ((done >> t & 1) != 0) continue;
      int64_t head = std::max(arrival_[t], free_at_[g_.rank[t]]);
      for (int32_t e = g_.pred_offset[t]; e < g_.pred_offset[t + 1]; ++e) {
        const int32_t from = g_.pred[e];
        if ((done >> from & 1) != 0) continue;
        head =
            std::max(head, head_[from] + g_.duration[from] + g_.pred_delay[e]);
      }
      head_[t] = head;
      bound = std::max(bound, head + g_.duration[t] + tail_[t]);
    }
    for (int32_t r = 0; r < g_.num_ranks && bound < best_; ++r) {
      bound = std::max(bound, MachineBound(done, r));
    }
    return bound;
  }

  // Returns the bound of Jackson's preemptive schedule, computed without its
  // queue: for each tail q, the tasks with tails of at least q end no sooner
  // than when run in the order of their heads.
  int64_t MachineBound(uint64_t done, int32_t r) const {
    std::array<int32_t, kMaxExactTasks> by_head{};
    size_t count = 0;
    int64_t bound = 0;
    for (const int32_t t : by_tail_[r]) {
      if ((done >> t & 1) != 0) continue;
      size_t i = count++;
      for (; i > 0 && head_[by_head[i - 1]] > head_[t]; --i) {
        by_head[i] = by_head[i - 1];
      }
      by_head[i] = t;
      int64_t end = 0;
      for (i = 0; i < count; ++i) {
        end = std::max(end, head_[by_head[i]]) + g_.duration[by_head[i]];
      }
      bound = std::max(bound, end + tail_[t]);
    }
    return bound;
  }

  // Returns whether a kept state is as good as this one; if not, keeps this
  // one. A state is its done set, the time when each rank is free, and the time
  // when each task that has a done producer could start; equal sets have the
  // same such tasks.
  bool IsDominated(uint64_t done, int64_t finish) {
    state_.clear();
    state_.push_back(finish);
    for (const int64_t at : free_at_) state_.push_back(at);
    for (int32_t t = 0; t < n_; ++t) {
      if ((done >> t & 1) != 0) continue;
      if (missing_[t] == g_.pred_offset[t + 1] - g_.pred_offset[t]) continue;
      state_.push_back(std::max(arrival_[t], free_at_[g_.rank[t]]));
    }
    const size_t size = state_.size();
    auto [it, fresh] = first_kept_.try_emplace(done, -1);
    for (int64_t at = it->second; at >= 0; at = kept_[at]) {
      const int64_t* const other = &kept_[at + 1];
      size_t i = 0;
      while (i < size && other[i] <= state_[i]) ++i;
      if (i == size) return true;
    }
    if (kept_.size() < kMaxKept) {
      const auto at = static_cast<int64_t>(kept_.size());
      kept_.push_back(it->second);
      kept_.insert(kept_.end(), state_.begin(), state_.end());
      it->second = at;
    }
    return false;
  }

  // Finds connected parts that are equal task by task in the order of their
  // ids: the first task of one may be held back until that of the part before
  // it has run.
  void FindTwins() {
    std::vector<int32_t> parent(static_cast<size_t>(n_));
    std::iota(parent.begin(), parent.end(), 0);
    const auto root = [&](int32_t t) {
      while (parent[t] != t) t = parent[t] = parent[parent[t]];
      return t;
    };
    for (int32_t t = 0; t < n_; ++t) {
      for (int32_t e = g_.pred_offset[t]; e < g_.pred_offset[t + 1]; ++e) {
        const int32_t a = root(g_.pred[e]);
        const int32_t b = root(t);
        parent[std::max(a, b)] = std::min(a, b);
      }
    }
    std::vector<std::vector<int32_t>> parts(static_cast<size_t>(n_));
    std::vector<int32_t> place(static_cast<size_t>(n_));
    for (int32_t t = 0; t < n_; ++t) {
      std::vector<int32_t>& part = parts[root(t)];
      place[t] = static_cast<int32_t>(part.size());
      part.push_back(t);
    }
    // Describes a part in numbers.
    const auto describe = [&](const std::vector<int32_t>& part) {
      std::vector<int64_t> text;
      for (const int32_t t : part) {
        text.insert(text.end(),
                    {g_.rank[t], g_.duration[t], g_.alloc[t], g_.free[t]});
        for (int32_t e = g_.pred_offset[t]; e < g_.pred_offset[t + 1]; ++e) {
          text.insert(text.end(), {-1, place[g_.pred[e]], g_.pred_delay[e]});
        }
      }
      return text;
    };
    absl::flat_hash_map<std::vector<int64_t>, int32_t> last;
    for (const std::vector<int32_t>& part : parts) {
      if (part.empty()) continue;
      const auto [it, fresh] = last.try_emplace(describe(part), part[0]);
      if (fresh) continue;
      // Only if the first task comes before all others of its part.
      twin_before_[part[0]] = it->second;
      it->second = part[0];
      if (!ComesFirst(part)) twin_before_[part[0]] = -1;
    }
  }
  bool ComesFirst(const std::vector<int32_t>& part) const {
    return std::all_of(part.begin() + 1, part.end(), [&](int32_t t) {
      return g_.pred_offset[t] < g_.pred_offset[t + 1];
    });
  }

  const FlatGraph& g_;
  const SearchBudget& budget_;
  int32_t n_;
  std::vector<int64_t> tail_;
  std::vector<int64_t> arrival_;  // Earliest start that done producers allow.
  std::vector<int64_t> head_;
  std::vector<int32_t> missing_;
  std::vector<int32_t> twin_before_;
  std::vector<int64_t> free_at_;
  std::vector<int64_t> held_;
  std::vector<int64_t> to_alloc_;  // Bytes that open tasks will allocate.
  std::vector<std::vector<int32_t>> by_tail_;
  std::vector<int32_t> sequence_{};
  std::vector<int64_t> trail_{};  // Arrivals to restore.
  std::vector<int64_t> state_{};
  // States by done set: lists through kept_, whose entries are the index of the
  // next entry followed by the times.
  absl::flat_hash_map<uint64_t, int64_t> first_kept_{};
  std::vector<int64_t> kept_{};
  absl::flat_hash_set<uint64_t> dead_{};
  int64_t best_ = 0;
  std::vector<int32_t> best_sequence_{};
  bool stopped_ = false;
  int64_t nodes_ = 0;
};

}  // namespace

ExactResult ExactSearch(const FlatGraph& graph, int64_t upper_bound,
                        std::vector<int32_t> incumbent,
                        const SearchBudget& budget) {
  if (graph.num_tasks > kMaxExactTasks) {
    return {.sequence = std::move(incumbent), .step_time = upper_bound};
  }
  return Search(graph, budget).Run(upper_bound, std::move(incumbent));
}

}  // namespace pipeloom::planner
