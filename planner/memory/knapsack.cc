#include "planner/memory/knapsack.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace pipeloom::planner {

KnapsackFront::KnapsackFront(absl::Span<const KnapsackClass> classes,
                             const KnapsackOptions& options) {
  // The least weight of the classes from the i-th on.
  std::vector<int64_t> lightest(classes.size() + 1, 0);
  for (size_t i = classes.size(); i-- > 0;) {
    PIPELOOM_CHECK(!classes[i].empty());
    int64_t least = classes[i][0].weight;
    for (const KnapsackItem& item : classes[i]) {
      least = std::min(least, item.weight);
    }
    lightest[i] = lightest[i + 1] + least;
  }
  states_.reserve(classes.size() + 1);
  states_.push_back({State{}});
  if (lightest[0] > options.capacity) {
    states_.back().clear();
    return;
  }
  std::vector<State> sums;
  for (size_t i = 0; i < classes.size(); ++i) {
    const std::vector<State>& before = states_.back();
    const int64_t room = options.capacity - lightest[i + 1];
    sums.clear();
    for (size_t s = 0; s < before.size(); ++s) {
      for (size_t j = 0; j < classes[i].size(); ++j) {
        const KnapsackItem& item = classes[i][j];
        const int64_t weight = before[s].weight + item.weight;
        if (weight > room) continue;
        sums.push_back({.weight = weight,
                        .cost = before[s].cost + item.cost,
                        .before = static_cast<int32_t>(s),
                        .item = static_cast<int32_t>(j)});
      }
    }
    std::sort(sums.begin(), sums.end(), [](const State& a, const State& b) {
      return std::tie(a.weight, a.cost, a.before, a.item) <
             std::tie(b.weight, b.cost, b.before, b.item);
    });
    std::vector<State> front;
    for (const State& sum : sums) {
      if (front.empty() || sum.cost < front.back().cost) front.push_back(sum);
    }
    const auto most = static_cast<size_t>(std::max(2, options.max_states));
    if (front.size() > most) {
      exact_ = false;
      const int64_t low = front.front().weight;
      const int64_t range = front.back().weight - low;
      std::vector<State> thin;
      int64_t last_bucket = -1;
      for (const State& state : front) {
        // Keeps the lightest, and the cheapest of each bucket, which is its
        // last.
        const auto bucket = static_cast<int64_t>(
            static_cast<double>(state.weight - low) /
            static_cast<double>(range) * static_cast<double>(most - 2));
        if (thin.size() > 1 && bucket == last_bucket) thin.pop_back();
        thin.push_back(state);
        last_bucket = bucket;
      }
      front = std::move(thin);
    }
    states_.push_back(std::move(front));
  }
}

std::vector<int32_t> KnapsackFront::Items(int32_t point) const {
  std::vector<int32_t> items(states_.size() - 1);
  for (size_t i = states_.size() - 1; i > 0; --i) {
    const State& state = states_[i][at(point)];
    items[i - 1] = state.item;
    point = state.before;
  }
  return items;
}

std::optional<int32_t> KnapsackFront::Best(int64_t capacity) const {
  const auto after = std::upper_bound(
      points().begin(), points().end(), capacity,
      [](int64_t most, const State& state) { return most < state.weight; });
  if (after == points().begin()) return std::nullopt;
  return static_cast<int32_t>(after - points().begin()) - 1;
}

}  // namespace pipeloom::planner
