// The multiple-choice knapsack: one item of each class, at least cost within a
// capacity. Exact unless a class needs more states than allowed.
//
// Class after class, all non-dominated (weight, cost) sums are kept (Nemhauser,
// Ullmann 1969; with classes: Kellerer, Pferschy, Pisinger 2004, chapter 11).
// So the last list has the best answer for every capacity at once. Sums that
// coincide count once: n equal classes of k items need at most C(n + k - 1, n)
// states. O(states x items) time and memory.
#ifndef PIPELOOM_PLANNER_MEMORY_KNAPSACK_H_
#define PIPELOOM_PLANNER_MEMORY_KNAPSACK_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace pipeloom::planner {

// An item of a class.
struct KnapsackItem {
  int64_t cost = 0;
  int64_t weight = 0;
  bool operator==(const KnapsackItem&) const = default;
};
// The items to choose one of. Not empty.
using KnapsackClass = std::vector<KnapsackItem>;

// Limits of the sums that are kept.
struct KnapsackOptions {
  // Heavier sums are dropped, counting in the lightest items of the classes to
  // come.
  int64_t capacity = std::numeric_limits<int64_t>::max();
  // The most states after one class. Beyond it only the cheapest state of each
  // of that many equal ranges of weight is kept, and answers are no longer
  // exact.
  int32_t max_states = 1 << 16;
};

// The best compromises between weight and cost.
class KnapsackFront {
 public:
  // REQUIRES: weights >= 0; all sums below 2^62.
  explicit KnapsackFront(absl::Span<const KnapsackClass> classes,
                         const KnapsackOptions& options = {});

  // Returns the number of points, which have ascending weight and descending
  // cost; 0 if nothing fits the capacity. Without classes there is one point,
  // of weight and cost 0.
  int32_t size() const { return static_cast<int32_t>(points().size()); }
  int64_t weight(int32_t point) const { return points()[at(point)].weight; }
  int64_t cost(int32_t point) const { return points()[at(point)].cost; }
  // Returns the chosen item of each class.
  std::vector<int32_t> Items(int32_t point) const;
  // Returns the cheapest point of at most this weight; nullopt if there is
  // none.
  std::optional<int32_t> Best(int64_t capacity) const;
  // Returns whether max_states sufficed.
  bool exact() const { return exact_; }

 private:
  struct State {
    int64_t weight = 0;
    int64_t cost = 0;
    int32_t before = 0;  // Index of the state of the class before.
    int32_t item = 0;
  };
  static size_t at(int32_t point) { return static_cast<size_t>(point); }
  const std::vector<State>& points() const { return states_.back(); }

  // One list after each class; the first is for no class.
  std::vector<std::vector<State>> states_{};
  bool exact_ = true;
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_KNAPSACK_H_
