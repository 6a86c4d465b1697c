#include "planner/overtaking_bound.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

// The chains that others are held against, and all that are looked at.
constexpr size_t kLeaders = 4;
constexpr size_t kMostChains = 256;

// Tasks that wait for each other, and the delay from each to the next.
struct Chain {
  std::vector<int32_t> tasks{};
  std::vector<int64_t> delays{};
  size_t turn = 0;  // The first that is no forward; all, if none.
};

class ChainFinder {
 public:
  ChainFinder(const FlatGraph& graph, absl::Span<const int64_t> head,
              absl::Span<const int64_t> tail)
      : graph_(&graph),
        head_(head),
        tail_(tail),
        seen_(static_cast<size_t>(graph.num_tasks), 0) {}

  // The longest chains with no task in common, the longest first.
  std::vector<Chain> Find() {
    std::vector<int32_t> seeds(static_cast<size_t>(graph_->num_tasks));
    std::iota(seeds.begin(), seeds.end(), 0);
    const auto length = [&](int32_t t) {
      return head_[t] + graph_->duration[t] + tail_[t];
    };
    std::stable_sort(seeds.begin(), seeds.end(), [&](int32_t a, int32_t b) {
      return length(a) > length(b);
    });
    std::vector<Chain> chains;
    for (const int32_t seed : seeds) {
      if (chains.size() >= kMostChains) break;
      if (seen_[seed] != 0 || graph_->pass[seed] == Pass::kWeightGrad) continue;
      Chain chain = Through(seed);
      const bool apart = std::all_of(chain.tasks.begin(), chain.tasks.end(),
                                     [&](int32_t t) { return seen_[t] != 1; });
      // 1: of a chain that is kept; 2: of another.
      for (const int32_t t : chain.tasks) {
        if (seen_[t] != 1) seen_[t] = apart ? 1 : 2;
      }
      if (apart) chains.push_back(std::move(chain));
    }
    return chains;
  }

 private:
  // The longest chain through a task.
  Chain Through(int32_t seed) const {
    const FlatGraph& g = *graph_;
    Chain chain;
    for (int32_t t = seed; t >= 0;) {
      chain.tasks.push_back(t);
      int64_t latest = -1;
      int64_t delay = 0;
      int32_t ahead = -1;
      for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
        const int32_t p = g.pred[e];
        const int64_t end = head_[p] + g.duration[p] + g.pred_delay[e];
        if (end <= latest) continue;
        latest = end;
        delay = g.pred_delay[e];
        ahead = p;
      }
      if (ahead >= 0) chain.delays.push_back(delay);
      t = ahead;
    }
    std::reverse(chain.tasks.begin(), chain.tasks.end());
    std::reverse(chain.delays.begin(), chain.delays.end());
    for (int32_t t = seed; t >= 0;) {
      int64_t longest = -1;
      int64_t delay = 0;
      int32_t next = -1;
      for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
        const int32_t s = g.succ[e];
        const int64_t rest = g.succ_delay[e] + g.duration[s] + tail_[s];
        if (rest <= longest) continue;
        longest = rest;
        delay = g.succ_delay[e];
        next = s;
      }
      if (next >= 0) {
        chain.tasks.push_back(next);
        chain.delays.push_back(delay);
      }
      t = next;
    }
    while (chain.turn < chain.tasks.size() &&
           g.pass[chain.tasks[chain.turn]] == Pass::kForward) {
      ++chain.turn;
    }
    return chain;
  }

  const FlatGraph* graph_;
  absl::Span<const int64_t> head_;
  absl::Span<const int64_t> tail_;
  std::vector<uint8_t> seen_;
};

// A chain beside the one it is held against, from the turn outwards.
struct Companion {
  const Chain* chain = nullptr;
  size_t before = 0;  // Tasks ahead of the turn that run on the same ranks.
  size_t after = 0;   // And from the turn on.
  // The least price of the first x tasks ahead of the turn, and from it on.
  std::vector<int64_t> least_before{};
  std::vector<int64_t> least_after{};
};

class Leader {
 public:
  Leader(const FlatGraph& graph, absl::Span<const int64_t> head,
         absl::Span<const int64_t> tail, const Chain& chain)
      : graph_(&graph), head_(head), tail_(tail), chain_(&chain) {}

  int64_t Bound(const std::vector<Chain>& chains) {
    std::vector<Companion> companions;
    std::vector<size_t> ends;
    for (const Chain& other : chains) {
      if (&other == chain_) continue;
      companions.push_back(Beside(other));
      ends.push_back(companions.back().after);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    const int32_t first = chain_->tasks.front();
    const int64_t own = graph_->duration[first] + tail_[first];
    int64_t bound = own;
    for (size_t before = 0; before <= chain_->turn; ++before) {
      bound = std::max(bound, own + Extra(companions, before, before));
      for (const size_t after : ends) {
        if (after == before) continue;
        bound = std::max(bound, own + Extra(companions, before, after));
      }
    }
    return bound;
  }

 private:
  Companion Beside(const Chain& other) const {
    const FlatGraph& g = *graph_;
    const Chain& mine = *chain_;
    Companion c{.chain = &other};
    const auto same = [&](size_t i, size_t j) {
      return g.rank[mine.tasks[i]] == g.rank[other.tasks[j]];
    };
    while (c.before < std::min(mine.turn, other.turn) &&
           same(mine.turn - c.before - 1, other.turn - c.before - 1)) {
      ++c.before;
    }
    while (mine.turn + c.after < mine.tasks.size() &&
           other.turn + c.after < other.tasks.size() &&
           same(mine.turn + c.after, other.turn + c.after)) {
      ++c.after;
    }
    // Task by task from the turn outwards: what an overtaker costs that runs
    // behind at the task before it; at the first task of a stretch, that it
    // goes ahead there; at the last, that it stays behind.
    int64_t least = std::numeric_limits<int64_t>::max();
    c.least_before.push_back(least);
    for (size_t x = 1; x <= c.before; ++x) {
      least = std::min({least, Duration(other, other.turn - x),
                        Overtaking(mine.turn - x, other, other.turn - x)});
      c.least_before.push_back(least);
    }
    least = std::numeric_limits<int64_t>::max();
    c.least_after.push_back(least);
    for (size_t x = 0; x < c.after; ++x) {
      least = std::min({least, Duration(other, other.turn + x),
                        Overtaking(mine.turn + x, other, other.turn + x)});
      c.least_after.push_back(least);
    }
    return c;
  }
  int64_t Duration(const Chain& chain, size_t i) const {
    return graph_->duration[chain.tasks[i]];
  }
  // What the leader waits at its task k for the other's task j ahead of it.
  int64_t Overtaking(size_t k, const Chain& other, size_t j) const {
    if (k == 0 || j == 0) return Duration(other, j);
    const int64_t longer =
        chain_->delays[k - 1] - Duration(other, j - 1) - other.delays[j - 1];
    return std::max<int64_t>(0,
                             Duration(other, j) - std::max<int64_t>(0, longer));
  }
  // Of the stretch of so many tasks ahead of the turn and from it on.
  int64_t Extra(const std::vector<Companion>& companions, size_t before,
                size_t after) const {
    const size_t turn = chain_->turn;
    if (before + after == 0 || turn + after > chain_->tasks.size()) return 0;
    int64_t extra = 0;
    int64_t head = std::numeric_limits<int64_t>::max();
    int64_t tail = head;
    for (const Companion& c : companions) {
      if (c.before < before || c.after < after) continue;
      extra += std::min(c.least_before[before], c.least_after[after]);
      const size_t begin = c.chain->turn - before;
      const size_t end = c.chain->turn + after;
      head = std::min(head, head_[c.chain->tasks[begin]]);
      tail = std::min(tail, tail_[c.chain->tasks[end - 1]]);
    }
    const int64_t later = head_[chain_->tasks[turn - before]] - head;
    const int64_t longer = tail_[chain_->tasks[turn + after - 1]] - tail;
    return extra - std::max<int64_t>(0, later) - std::max<int64_t>(0, longer);
  }

  const FlatGraph* graph_;
  absl::Span<const int64_t> head_;
  absl::Span<const int64_t> tail_;
  const Chain* chain_;
};

}  // namespace

int64_t OvertakingBound(const FlatGraph& graph, absl::Span<const int64_t> head,
                        absl::Span<const int64_t> tail) {
  const std::vector<Chain> chains = ChainFinder(graph, head, tail).Find();
  int64_t bound = 0;
  for (size_t i = 0; i < std::min(kLeaders, chains.size()); ++i) {
    bound = std::max(bound, Leader(graph, head, tail, chains[i]).Bound(chains));
  }
  return bound;
}

}  // namespace pipeloom::planner
