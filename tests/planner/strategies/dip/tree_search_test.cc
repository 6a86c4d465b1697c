#include "planner/strategies/dip/tree_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace pipeloom::planner {
namespace {

// Orders of 0 .. n-1; the cost counts pairs that are out of a hidden order.
class HiddenOrder {
 public:
  struct State {
    std::vector<int32_t> chosen{};
    std::vector<int32_t> left{};
  };
  explicit HiddenOrder(std::vector<int32_t> hidden)
      : hidden_(std::move(hidden)) {}
  State Root() const {
    State state;
    state.left.resize(hidden_.size());
    std::iota(state.left.begin(), state.left.end(), 0);
    return state;
  }
  int32_t NumChoices(const State& state) const {
    return static_cast<int32_t>(state.left.size());
  }
  void Apply(State* state, int32_t choice) const {
    state->chosen.push_back(state->left[choice]);
    state->left.erase(state->left.begin() + choice);
  }
  int64_t Cost(const State& state) {
    ++evaluations;
    int64_t cost = 1;
    for (size_t i = 0; i < state.chosen.size(); ++i) {
      for (size_t j = i + 1; j < state.chosen.size(); ++j) {
        cost += hidden_[state.chosen[i]] > hidden_[state.chosen[j]];
      }
    }
    return cost;
  }
  int64_t evaluations = 0;

 private:
  std::vector<int32_t> hidden_;
};

TEST(TreeSearchTest, FindsTheBestOfAllOrdersOfSix) {
  HiddenOrder problem({3, 1, 5, 0, 4, 2});
  TreeSearch<HiddenOrder> tree(problem, /*seed=*/1);
  while (problem.evaluations < 3000 && tree.best_cost() > 1) tree.Step();
  EXPECT_EQ(tree.best_cost(), 1);
}

TEST(TreeSearchTest, BeatsAsManyRandomOrders) {
  int wins = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    std::vector<int32_t> hidden(12);
    std::iota(hidden.begin(), hidden.end(), 0);
    random.Shuffle(absl::MakeSpan(hidden));
    HiddenOrder problem(hidden);
    TreeSearch<HiddenOrder> tree(problem, seed);
    while (problem.evaluations < 2000) tree.Step();
    int64_t best = tree.best_cost() + 1000;
    HiddenOrder::State state = problem.Root();
    std::swap(state.chosen, state.left);
    for (int i = 0; i < 2000; ++i) {
      random.Shuffle(absl::MakeSpan(state.chosen));
      best = std::min(best, problem.Cost(state));
    }
    wins += tree.best_cost() < best;
  }
  EXPECT_GE(wins, 15);
}

TEST(TreeSearchTest, CountsItsEvaluationsAndRepeatsWithItsSeed) {
  HiddenOrder a({2, 0, 1, 4, 3, 6, 5});
  HiddenOrder b = a;
  TreeSearch<HiddenOrder> first(a, 7);
  TreeSearch<HiddenOrder> second(b, 7);
  int64_t calls = 0;
  for (int i = 0; i < 50; ++i) {
    calls += first.Step();
    second.Step();
    ASSERT_EQ(first.best_state().chosen, second.best_state().chosen);
  }
  EXPECT_EQ(calls, a.evaluations);
}

}  // namespace
}  // namespace pipeloom::planner
