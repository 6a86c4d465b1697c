#include "partition/batching/assign_loads.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace pipeloom::partition {
namespace {

constexpr int64_t kMaxImprovements = 2000;

size_t At(int32_t i) { return static_cast<size_t>(i); }

// The groups, each with its items from heavy to light.
class Groups {
 public:
  Groups(absl::Span<const int64_t> weights, int32_t groups)
      : weights_(weights), items_(At(groups)), load_(At(groups), 0) {
    std::vector<int32_t> order(weights.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return weights_[At(a)] != weights_[At(b)]
                 ? weights_[At(a)] > weights_[At(b)]
                 : a < b;
    });
    // A heap with the lightest group on top; of equal ones that with the fewest
    // items, so that items without weight are spread too.
    std::vector<int32_t> heap(At(groups));
    std::iota(heap.begin(), heap.end(), 0);
    const auto later = [&](int32_t a, int32_t b) {
      if (load_[At(a)] != load_[At(b)]) return load_[At(a)] > load_[At(b)];
      if (items_[At(a)].size() != items_[At(b)].size()) {
        return items_[At(a)].size() > items_[At(b)].size();
      }
      return a > b;
    };
    for (const int32_t item : order) {
      std::pop_heap(heap.begin(), heap.end(), later);
      const size_t g = At(heap.back());
      items_[g].push_back(item);
      load_[g] += weights_[At(item)];
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }

  // Makes the heaviest group lighter. Returns false if no move or exchange
  // does.
  bool Improve() {
    const auto heaviest = static_cast<size_t>(
        std::max_element(load_.begin(), load_.end()) - load_.begin());
    // Partners from light to heavy; usually the first one suffices.
    std::vector<size_t> partners(load_.size());
    std::iota(partners.begin(), partners.end(), size_t{0});
    std::stable_sort(partners.begin(), partners.end(),
                     [&](size_t a, size_t b) { return load_[a] < load_[b]; });
    for (const size_t other : partners) {
      if (load_[other] >= load_[heaviest]) break;
      if (Exchange(heaviest, other)) return true;
    }
    return false;
  }

  int64_t heaviest_load() const {
    return *std::max_element(load_.begin(), load_.end());
  }
  const std::vector<std::vector<int32_t>>& items() const { return items_; }

 private:
  int64_t Weight(size_t group, size_t place) const {
    return weights_[At(items_[group][place])];
  }

  // Exchanges an item of `from` for one of `to`, or for nothing, so that the
  // heavier of the two becomes as light as possible.
  bool Exchange(size_t from, size_t to) {
    const int64_t gap = load_[from] - load_[to];
    constexpr size_t kNone = static_cast<size_t>(-1);
    int64_t best = 0;  // Largest min(shift, gap - shift) so far.
    size_t give = kNone;
    size_t take = kNone;
    const auto consider = [&](int64_t shift, size_t g, size_t t) {
      const int64_t gain = std::min(shift, gap - shift);
      if (gain <= best) return;
      best = gain;
      give = g;
      take = t;
    };
    const size_t n = items_[from].size();
    const size_t m = items_[to].size();
    if (n > 1) {
      for (size_t g = 0; g < n; ++g) consider(Weight(from, g), g, kNone);
    }
    // For each item given, the items taken whose difference is about gap / 2:
    // both lists descend, so the position moves in one direction.
    size_t t = 0;
    for (size_t g = 0; g < n; ++g) {
      const int64_t wanted = Weight(from, g) - gap / 2;
      while (t < m && Weight(to, t) > wanted) ++t;
      if (t < m) consider(Weight(from, g) - Weight(to, t), g, t);
      if (t > 0) consider(Weight(from, g) - Weight(to, t - 1), g, t - 1);
    }
    if (give == kNone) return false;
    const int32_t given = Remove(from, give);
    if (take != kNone) Insert(from, Remove(to, take));
    Insert(to, given);
    return true;
  }

  int32_t Remove(size_t group, size_t place) {
    const int32_t item = items_[group][place];
    items_[group].erase(items_[group].begin() +
                        static_cast<std::ptrdiff_t>(place));
    load_[group] -= weights_[At(item)];
    return item;
  }
  void Insert(size_t group, int32_t item) {
    std::vector<int32_t>& list = items_[group];
    const auto place = std::lower_bound(
        list.begin(), list.end(), item, [&](int32_t a, int32_t b) {
          return weights_[At(a)] > weights_[At(b)];
        });
    list.insert(place, item);
    load_[group] += weights_[At(item)];
  }

  absl::Span<const int64_t> weights_;
  std::vector<std::vector<int32_t>> items_;
  std::vector<int64_t> load_;
};

}  // namespace

std::vector<int32_t> AssignLoads(absl::Span<const int64_t> weights,
                                 int32_t groups) {
  PIPELOOM_CHECK(groups >= 1);
  Groups assigned(weights, groups);
  int64_t total = 0;
  int64_t largest = 0;
  for (const int64_t weight : weights) {
    total += weight;
    largest = std::max(largest, weight);
  }
  const int64_t bound = std::max(largest, (total + groups - 1) / groups);
  for (int64_t i = 0; i < kMaxImprovements && assigned.heaviest_load() > bound;
       ++i) {
    if (!assigned.Improve()) break;
  }
  std::vector<int32_t> group(weights.size());
  for (size_t g = 0; g < assigned.items().size(); ++g) {
    for (const int32_t item : assigned.items()[g]) {
      group[At(item)] = static_cast<int32_t>(g);
    }
  }
  return group;
}

std::vector<int64_t> GroupLoads(absl::Span<const int64_t> weights,
                                absl::Span<const int32_t> group,
                                int32_t groups) {
  std::vector<int64_t> loads(At(groups), 0);
  for (size_t i = 0; i < weights.size(); ++i) {
    loads[At(group[i])] += weights[i];
  }
  return loads;
}

std::vector<int32_t> OrderBySize(absl::Span<const int64_t> sizes) {
  std::vector<int32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return sizes[At(a)] < sizes[At(b)];
  });
  // Smallest first; the rest descends and so ends with the second smallest.
  if (order.size() > 1) std::reverse(order.begin() + 1, order.end());
  return order;
}

}  // namespace pipeloom::partition
