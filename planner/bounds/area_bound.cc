#include "planner/bounds/area_bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
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

// Finds chains from several tasks of a component in one walk over it.
class Chains {
 public:
  static constexpr size_t kStarts = 8;  // The most tasks in one walk.

  explicit Chains(const FlatGraph& graph)
      : graph_(graph),
        reach_(static_cast<size_t>(graph.num_tasks), kNoChains) {}

  // Finds the longest chains from the start of each task of a component at
  // `starts`, its positions in `tasks`, to the ends of the others. REQUIRES:
  // positions descend, in one call and from call to call for a component.
  void Find(const std::vector<int32_t>& tasks,
            absl::Span<const size_t> starts) {
    const FlatGraph& g = graph_;
    // Tasks before the first start keep kNoChains.
    size_t next = starts.size();
    for (size_t i = starts.back(); i < tasks.size(); ++i) {
      const int32_t t = tasks[i];
      std::array<int64_t, kStarts> longest = kNoChains;
      for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
        const std::array<int64_t, kStarts>& before = reach_[g.pred[e]];
        const int64_t delay = g.pred_delay[e];
        for (size_t k = 0; k < kStarts; ++k) {
          longest[k] = std::max(longest[k], before[k] + delay);
        }
      }
      while (next > 0 && starts[next - 1] == i) longest[--next] = 0;
      for (int64_t& end : longest) end += g.duration[t];
      reach_[t] = longest;
    }
  }
  // Returns the chain in ns from a start of the last walk, given its index, to
  // the end of a task of the component; negative: there is none.
  int64_t To(int32_t task, size_t start) const { return reach_[task][start]; }

 private:
  // So low that no sum of times makes it positive.
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min() / 2;
  static constexpr std::array<int64_t, kStarts> kNoChains = {
      kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};

  const FlatGraph& graph_;
  std::vector<std::array<int64_t, kStarts>> reach_;  // Indexed by task.
};

// A rank's memory x time.
struct Account {
  double area = 0;
  bool is_known = true;  // False if bytes could not be paired.
};

// Pairs takers and givers of components.
class Pairing {
 public:
  explicit Pairing(const FlatGraph& graph)
      : graph_(graph), given_(graph.free), chains_(graph) {}

  // Adds the least area of a component to the accounts of its ranks.
  void Add(const std::vector<int32_t>& tasks, std::vector<Account>* accounts) {
    const FlatGraph& g = graph_;
    givers_.assign(accounts->size(), {});
    for (const int32_t t : tasks) {
      if (g.free[t] > 0) givers_[g.rank[t]].push_back(t);
    }
    std::vector<size_t> takers;  // Their positions.
    for (size_t i = tasks.size(); i-- > 0;) {
      const int32_t t = tasks[i];
      if (g.alloc[t] > 0 && g.capacity[g.rank[t]] < kNoLimit) {
        takers.push_back(i);
      }
      if (takers.size() == Chains::kStarts || (i == 0 && !takers.empty())) {
        chains_.Find(tasks, takers);
        for (size_t k = 0; k < takers.size(); ++k) {
          Pair(tasks[takers[k]], k, accounts);
        }
        takers.clear();
      }
    }
    for (size_t r = 0; r < givers_.size(); ++r) {
      for (const int32_t giver : givers_[r]) {
        if (given_[giver] > 0) (*accounts)[r].is_known = false;
      }
    }
  }

 private:
  // Pairs what a taker, at an index of the last walk, takes with the nearest
  // givers.
  void Pair(int32_t taker, size_t start, std::vector<Account>* accounts) {
    const auto r = static_cast<size_t>(graph_.rank[taker]);
    int64_t left = graph_.alloc[taker];
    while (left > 0) {
      int32_t nearest = -1;
      for (const int32_t giver : givers_[r]) {
        if (given_[giver] > 0 && chains_.To(giver, start) >= 0 &&
            (nearest < 0 ||
             chains_.To(giver, start) < chains_.To(nearest, start))) {
          nearest = giver;
        }
      }
      if (nearest < 0) return;  // Held for good, or for longer.
      const int64_t part = std::min(left, given_[nearest]);
      (*accounts)[r].area += static_cast<double>(part) *
                             static_cast<double>(chains_.To(nearest, start));
      given_[nearest] -= part;
      left -= part;
    }
  }

  const FlatGraph& graph_;
  std::vector<int64_t> given_;  // Indexed by task: bytes not yet paired.
  Chains chains_;
  // Indexed by rank: tasks of the present component that give bytes back.
  std::vector<std::vector<int32_t>> givers_{};
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

// Bytes that a rank's tasks take at one end of the step, or give back at the
// other.
struct End {
  struct Piece {
    int64_t duration = 0;
    int64_t bytes = 0;
  };
  std::vector<std::pair<int64_t, int64_t>> steps{};  // Head or tail, bytes.
  std::vector<Piece> pieces{};                       // One for each task.
  int64_t for_good = 0;  // Bytes that are held at the very end.
};

// Returns bytes x time that cannot be used in the first `until` ns because the
// rank runs one task at a time: by x ns after the first head, it has begun one
// task, and others that take x ns at most. These take no more than the tasks
// with the most bytes per time do, the last of them in part.
double UnusedByPace(const End& end, int64_t capacity, int64_t until) {
  if (end.pieces.empty()) return 0;
  std::vector<End::Piece> pieces = end.pieces;
  std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) {
    return static_cast<double>(a.bytes) * static_cast<double>(b.duration) >
           static_cast<double>(b.bytes) * static_cast<double>(a.duration);
  });
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const auto& [at, bytes] : end.steps) first = std::min(first, at);
  int64_t most = 0;
  for (const End::Piece& piece : pieces) most = std::max(most, piece.bytes);
  first = std::min(first, until);
  double free = static_cast<double>(capacity - end.for_good);
  double unused = free * static_cast<double>(first);
  free -= static_cast<double>(most);
  auto left = static_cast<double>(until - first);
  for (const End::Piece& piece : pieces) {
    if (free <= 0 || left <= 0) break;
    const auto bytes = static_cast<double>(piece.bytes);
    const auto duration = static_cast<double>(piece.duration);
    // The part of the piece until memory is full or time is over.
    const double part =
        std::min({1.0, free / bytes, duration > 0 ? left / duration : 1.0});
    unused += part * duration * (free - part * bytes / 2);
    free -= part * bytes;
    left -= part * duration;
    if (part < 1) return unused;
  }
  return unused + std::max(0.0, free) * std::max(0.0, left);
}

// Returns what cannot be used at an end, by either reason.
double UnusedAt(const End& end, int64_t capacity, int64_t until) {
  auto steps = end.steps;
  if (end.for_good > 0) steps.push_back({0, end.for_good});
  return std::max(Unused(std::move(steps), capacity, until),
                  UnusedByPace(end, capacity, until));
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
  // Pairs by component, those that begin last first.
  std::vector<size_t> order(pairs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int32_t x = pairs[a].first;
    const int32_t y = pairs[b].first;
    return std::tuple(component[x], -place[x], a) <
           std::tuple(component[y], -place[y], b);
  });
  Chains finder(g);
  chains.resize(pairs.size());
  std::vector<size_t> starts;  // Positions in the component.
  for (size_t begin = 0; begin < order.size(); begin += starts.size()) {
    const int32_t in = component[pairs[order[begin]].first];
    starts.clear();
    for (size_t i = begin; i < order.size() && starts.size() < Chains::kStarts;
         ++i) {
      const int32_t from = pairs[order[i]].first;
      if (component[from] != in) break;
      starts.push_back(static_cast<size_t>(place[from]));
    }
    finder.Find(components[in], starts);
    for (size_t k = 0; k < starts.size(); ++k) {
      const auto& [from, to] = pairs[order[begin + k]];
      const int64_t chain = finder.To(to, k);
      chains[order[begin + k]] =
          component[to] != in || chain < 0
              ? -1
              : chain - g.duration[to] - g.duration[from];
    }
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
  std::vector<End> first(taken.size());
  std::vector<End> last(taken.size());
  const auto add = [&](int32_t t, int64_t at, int64_t bytes, End* end) {
    if (bytes <= 0) return;
    end->steps.push_back({at, bytes});
    end->pieces.push_back({g.duration[t], bytes});
  };
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    add(t, head[t], g.alloc[t], &first[g.rank[t]]);
    add(t, tail[t], g.free[t], &last[g.rank[t]]);
  }
  int64_t bound = 0;
  for (int32_t r = 0; r < g.num_ranks; ++r) {
    const int64_t capacity = g.capacity[r];
    if (capacity <= 0 || capacity >= kNoLimit || !accounts[r].is_known) {
      continue;
    }
    // Bytes that are never given back are held at the end.
    int64_t left = taken[r];
    for (const auto& [at, bytes] : last[r].steps) left -= bytes;
    last[r].for_good = std::max<int64_t>(0, left);
    // The two ends do not overlap in a step of at least `known`.
    const double unused = UnusedAt(first[r], capacity, known / 2) +
                          UnusedAt(last[r], capacity, known / 2);
    const double time =
        (accounts[r].area + unused) / static_cast<double>(capacity);
    bound = std::max(bound,
                     static_cast<int64_t>(std::ceil(time * (1 - kRounding))));
  }
  return bound;
}

}  // namespace pipeloom::planner
