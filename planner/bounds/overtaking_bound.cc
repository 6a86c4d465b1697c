#include "planner/bounds/overtaking_bound.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

// The number of chains that others are compared with, and of all chains looked
// at.
constexpr size_t kLeaders = 4;
constexpr size_t kMaxChains = 256;

// Tasks that wait for each other, and the delay from each to the next.
struct Chain {
  std::vector<int32_t> tasks{};
  std::vector<int64_t> delays{};
  // The first task that is no forward; the number of tasks if none.
  size_t turn = 0;
};

class ChainFinder {
 public:
  ChainFinder(const FlatGraph& graph, absl::Span<const int64_t> head,
              absl::Span<const int64_t> tail)
      : graph_(&graph),
        head_(head),
        tail_(tail),
        seen_(static_cast<size_t>(graph.num_tasks), 0) {}

  // Returns the longest chains with no task in common, the longest first.
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
      if (chains.size() >= kMaxChains) break;
      if (seen_[seed] != 0 || graph_->pass[seed] == Pass::kWeightGrad) continue;
      Chain chain = Through(seed);
      const bool apart = std::all_of(chain.tasks.begin(), chain.tasks.end(),
                                     [&](int32_t t) { return seen_[t] != 1; });
      // 1: task of a chain that is kept; 2: of another chain.
      for (const int32_t t : chain.tasks) {
        if (seen_[t] != 1) seen_[t] = apart ? 1 : 2;
      }
      if (apart) chains.push_back(std::move(chain));
    }
    return chains;
  }

 private:
  // Returns the longest chain through a task.
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

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// A chain next to the leader, from the turn outwards.
struct Companion {
  const Chain* chain = nullptr;
  size_t before = 0;  // Tasks ahead of the turn that run on the same ranks.
  size_t after = 0;   // The same for tasks from the turn on.
  // The least price of overtaking within the first x tasks ahead of the turn,
  // within the first x from the turn on, and at the turn.
  std::vector<int64_t> least_before{};
  std::vector<int64_t> least_after{};
  int64_t at_turn = kNever;
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
      companions.push_back(CompanionOf(other));
      ends.push_back(companions.back().after);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    ChooseSides(companions);
    for (Companion& c : companions) SetPrices(&c);
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
  Companion CompanionOf(const Chain& other) const {
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
    return c;
  }
  int64_t Duration(const Chain& chain, size_t i) const {
    return graph_->duration[chain.tasks[i]];
  }
  // Returns how long the leader waits, between its tasks k and k + 1, for a
  // companion that overtakes it there: the duration of the companion's later
  // task, or of its earlier one.
  int64_t Price(const Companion& c, size_t k, bool later) const {
    const size_t j = k + c.chain->turn - chain_->turn;
    const int64_t one = Duration(*c.chain, later ? j + 1 : j);
    const int64_t other = Duration(*c.chain, later ? j : j + 1);
    const int64_t longer = chain_->delays[k] - c.chain->delays[j] - other;
    return std::max<int64_t>(0, one - std::max<int64_t>(0, longer));
  }
  // Chooses for each gap the side that gives more for all companions together.
  void ChooseSides(const std::vector<Companion>& companions) {
    const size_t gaps = chain_->tasks.size() - 1;
    std::vector<int64_t> gain(gaps, 0);
    for (const Companion& c : companions) {
      const size_t end = chain_->turn + c.after;
      for (size_t k = chain_->turn - c.before; k + 1 < end; ++k) {
        gain[k] += Price(c, k, true) - Price(c, k, false);
      }
    }
    later_.resize(gaps);
    for (size_t k = 0; k < gaps; ++k) later_[k] = gain[k] >= 0;
  }
  void SetPrices(Companion* c) const {
    const size_t turn = chain_->turn;
    c->least_before.assign(c->before + 1, kNever);
    for (size_t x = 2; x <= c->before; ++x) {
      c->least_before[x] = std::min(c->least_before[x - 1],
                                    Price(*c, turn - x, later_[turn - x]));
    }
    c->least_after.assign(c->after + 1, kNever);
    for (size_t x = 2; x <= c->after; ++x) {
      c->least_after[x] = std::min(
          c->least_after[x - 1], Price(*c, turn + x - 2, later_[turn + x - 2]));
    }
    if (c->before > 0 && c->after > 0) {
      c->at_turn = Price(*c, turn - 1, later_[turn - 1]);
    }
  }
  // Returns how much longer the step is than the leader, by the stretch of
  // `before` tasks ahead of the turn and `after` from it on.
  int64_t Extra(const std::vector<Companion>& companions, size_t before,
                size_t after) const {
    const size_t turn = chain_->turn;
    if (before + after == 0 || turn + after > chain_->tasks.size()) return 0;
    int64_t extra = 0;
    int64_t head = kNever;
    int64_t tail = kNever;
    for (const Companion& c : companions) {
      if (c.before < before || c.after < after) continue;
      const size_t first = c.chain->turn - before;
      const size_t last = c.chain->turn + after - 1;
      int64_t price =
          std::min(Duration(*c.chain, first), Duration(*c.chain, last));
      price = std::min({price, c.least_before[before], c.least_after[after]});
      if (before > 0 && after > 0) price = std::min(price, c.at_turn);
      extra += price;
      head = std::min(head, head_[c.chain->tasks[first]]);
      tail = std::min(tail, tail_[c.chain->tasks[last]]);
    }
    const int64_t later = head_[chain_->tasks[turn - before]] - head;
    const int64_t longer = tail_[chain_->tasks[turn + after - 1]] - tail;
    return extra - std::max<int64_t>(0, later) - std::max<int64_t>(0, longer);
  }

  const FlatGraph* graph_;
  absl::Span<const int64_t> head_;
  absl::Span<const int64_t> tail_;
  const Chain* chain_;
  // Indexed by gap between the leader's tasks: the argument `later` of Price.
  std::vector<uint8_t> later_{};
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
