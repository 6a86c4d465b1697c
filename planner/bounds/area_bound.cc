#include "planner/bounds/area_bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace pipeloom::planner {
namespace {

// The most visits of tasks.
constexpr int64_t kMaxVisits = 5'000'000;
// Share of the bound that rounding of sums of doubles cannot reach.
constexpr double kRounding = 1e-9;

// Tasks by connected component, ascending.
std::vector<std::vector<int32_t>> ComponentsOf(const FlatGraph& g) {
  std::vector<int32_t> root(static_cast<size_t>(g.num_tasks));
  std::iota(root.begin(), root.end(), 0);
  const auto find = [&](int32_t t) {
    while (root[t] != t) t = root[t] = root[root[t]];
    return t;
  };
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      root[find(t)] = find(g.pred[e]);
    }
  }
  std::vector<int32_t> number(root.size(), -1);
  std::vector<std::vector<int32_t>> components;
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    int32_t& n = number[find(t)];
    if (n < 0) {
      n = static_cast<int32_t>(components.size());
      components.push_back({});
    }
    components[n].push_back(t);
  }
  return components;
}

// Sets `reach` to the longest chains from the start of task `first` of a
// component to the ends of the others; -1: none.
void FindChains(const FlatGraph& g, const std::vector<int32_t>& tasks,
                size_t first, std::vector<int64_t>* reach) {
  for (const int32_t t : tasks) (*reach)[t] = -1;
  (*reach)[tasks[first]] = g.duration[tasks[first]];
  for (size_t i = first + 1; i < tasks.size(); ++i) {
    const int32_t t = tasks[i];
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      const int64_t before = (*reach)[g.pred[e]];
      if (before < 0) continue;
      (*reach)[t] =
          std::max((*reach)[t], before + g.pred_delay[e] + g.duration[t]);
    }
  }
}

// A rank's memory x time.
struct Account {
  double area = 0;
  bool is_known = true;  // False if bytes could not be paired.
};

// Pairs takers and givers of components.
class Pairing {
 public:
  explicit Pairing(const FlatGraph& graph)
      : graph_(graph),
        given_(graph.free),
        reach_(static_cast<size_t>(graph.num_tasks), -1) {}

  // Adds the least area of a component to the accounts of its ranks.
  void Add(const std::vector<int32_t>& tasks, std::vector<Account>* accounts) {
    const FlatGraph& g = graph_;
    std::vector<std::vector<int32_t>> givers(accounts->size());
    for (const int32_t t : tasks) {
      if (g.free[t] > 0) givers[g.rank[t]].push_back(t);
    }
    for (size_t i = tasks.size(); i-- > 0;) {
      const int32_t taker = tasks[i];
      const int32_t r = g.rank[taker];
      if (g.alloc[taker] <= 0 || g.capacity[r] >= kNoLimit) continue;
      FindChains(g, tasks, i, &reach_);
      int64_t left = g.alloc[taker];
      while (left > 0) {
        int32_t nearest = -1;
        for (const int32_t giver : givers[r]) {
          if (given_[giver] > 0 && reach_[giver] >= 0 &&
              (nearest < 0 || reach_[giver] < reach_[nearest])) {
            nearest = giver;
          }
        }
        if (nearest < 0) break;  // Held for good, or for longer.
        const int64_t part = std::min(left, given_[nearest]);
        (*accounts)[r].area +=
            static_cast<double>(part) * static_cast<double>(reach_[nearest]);
        given_[nearest] -= part;
        left -= part;
      }
    }
    for (size_t r = 0; r < givers.size(); ++r) {
      for (const int32_t giver : givers[r]) {
        if (given_[giver] > 0) (*accounts)[r].is_known = false;
      }
    }
  }

 private:
  const FlatGraph& graph_;
  std::vector<int64_t> given_;  // Indexed by task: bytes not yet paired.
  std::vector<int64_t> reach_;  // Indexed by task.
};

// Returns bytes x time that cannot be used in the first `until` ns, when the
// second bytes of each step are there only from the first ns on.
double Unused(std::vector<std::pair<int64_t, int64_t>> steps, int64_t capacity,
              int64_t until) {
  std::sort(steps.begin(), steps.end());
  double unused = 0;
  int64_t there = 0;
  int64_t since = 0;
  for (const auto& [at, bytes] : steps) {
    const int64_t now = std::min(at, until);
    unused += static_cast<double>(capacity - there) *
              static_cast<double>(now - since);
    since = now;
    there += bytes;
    if (there >= capacity) return unused;
  }
  return unused + static_cast<double>(capacity - there) *
                      static_cast<double>(until - since);
}

}  // namespace

std::vector<int64_t> ChainsBetween(
    const FlatGraph& g, absl::Span<const std::pair<int32_t, int32_t>> pairs) {
  const std::vector<std::vector<int32_t>> components = ComponentsOf(g);
  // Indexed by task: its component, and its place in it.
  std::vector<int32_t> component(static_cast<size_t>(g.num_tasks));
  std::vector<int32_t> place(component.size());
  for (size_t c = 0; c < components.size(); ++c) {
    for (size_t i = 0; i < components[c].size(); ++i) {
      component[components[c][i]] = static_cast<int32_t>(c);
      place[components[c][i]] = static_cast<int32_t>(i);
    }
  }
  int64_t visits = 0;
  for (const auto& [from, to] : pairs) {
    visits += static_cast<int64_t>(components[component[from]].size());
  }
  std::vector<int64_t> chains;
  if (visits > kMaxVisits) return chains;
  std::vector<int64_t> reach(component.size(), -1);
  for (const auto& [from, to] : pairs) {
    FindChains(g, components[component[from]], static_cast<size_t>(place[from]),
               &reach);
    chains.push_back(component[from] != component[to] || reach[to] < 0
                         ? -1
                         : reach[to] - g.duration[to] - g.duration[from]);
  }
  return chains;
}

int64_t AreaBound(const FlatGraph& g, absl::Span<const int64_t> head,
                  absl::Span<const int64_t> tail, int64_t known) {
  const std::vector<std::vector<int32_t>> components = ComponentsOf(g);
  std::vector<int64_t> taken(static_cast<size_t>(g.num_ranks), 0);
  int64_t visits = 0;
  for (const std::vector<int32_t>& tasks : components) {
    for (const int32_t t : tasks) {
      if (g.alloc[t] <= 0) continue;
      taken[g.rank[t]] += g.alloc[t];
      visits += static_cast<int64_t>(tasks.size());
    }
  }
  bool binds = false;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    binds = binds || (g.capacity[r] > 0 && taken[r] > g.capacity[r] &&
                      g.capacity[r] < kNoLimit);
  }
  if (!binds || visits > kMaxVisits) return 0;
  std::vector<Account> accounts(taken.size());
  Pairing pairing(g);
  for (const std::vector<int32_t>& tasks : components) {
    pairing.Add(tasks, &accounts);
  }
  std::vector<std::vector<std::pair<int64_t, int64_t>>> first(taken.size());
  std::vector<std::vector<std::pair<int64_t, int64_t>>> last(taken.size());
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    if (g.alloc[t] > 0) first[g.rank[t]].push_back({head[t], g.alloc[t]});
    if (g.free[t] > 0) last[g.rank[t]].push_back({tail[t], g.free[t]});
  }
  int64_t bound = 0;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    const int64_t capacity = g.capacity[r];
    if (capacity <= 0 || capacity >= kNoLimit || !accounts[r].is_known) {
      continue;
    }
    // Bytes that are never given back are held at the end.
    int64_t left = taken[r];
    for (const auto& [at, bytes] : last[r]) left -= bytes;
    if (left > 0) last[r].push_back({0, left});
    // The two ends do not overlap in a step of at least `known`.
    const double unused = Unused(std::move(first[r]), capacity, known / 2) +
                          Unused(std::move(last[r]), capacity, known / 2);
    const double time =
        (accounts[r].area + unused) / static_cast<double>(capacity);
    bound = std::max(bound,
                     static_cast<int64_t>(std::ceil(time * (1 - kRounding))));
  }
  return bound;
}

}  // namespace pipeloom::planner
