#include "planner/memory/knapsack.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "planner/memory/integer_program.h"
#include "tests/oracles/brute_force_choice.h"

namespace pipeloom::planner {
namespace {

std::vector<KnapsackClass> RandomClasses(Random& random) {
  std::vector<KnapsackClass> classes(static_cast<size_t>(random.Between(0, 6)));
  const int64_t most = random.Below(2) == 0 ? 6 : 1000;
  for (KnapsackClass& items : classes) {
    items.resize(static_cast<size_t>(random.Between(1, 4)));
    for (KnapsackItem& item : items) {
      item.cost = random.Between(0, most);
      item.weight = random.Between(0, most);
    }
  }
  return classes;
}

// The same as a 0/1 program of one row.
IntegerProgram AsProgram(const std::vector<KnapsackClass>& classes,
                         int64_t capacity) {
  IntegerProgram program;
  program.limits = {capacity};
  for (const KnapsackClass& items : classes) {
    IntegerProgram::Group& group = program.groups.emplace_back();
    for (const KnapsackItem& item : items) {
      group.push_back({.cost = item.cost, .uses = {{0, 1, item.weight}}});
    }
  }
  return program;
}

TEST(Knapsack, EqualsBruteForceAndBranchAndBoundAtEveryCapacity) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const std::vector<KnapsackClass> classes = RandomClasses(random);
    const KnapsackFront front(classes);
    ASSERT_TRUE(front.exact());
    for (int i = 0; i < 8; ++i) {
      const int64_t capacity = random.Between(0, 2500) / (i + 1);
      const IntegerProgram program = AsProgram(classes, capacity);
      const std::optional<int64_t> expected = testing::BruteForceCost(program);
      const std::optional<int32_t> point = front.Best(capacity);
      const IntegerSolution tree = SolveIntegerProgram(program);
      ASSERT_EQ(point.has_value(), expected.has_value());
      ASSERT_TRUE(tree.optimal);
      ASSERT_EQ(tree.feasible, expected.has_value());
      const KnapsackFront capped(classes, {.capacity = capacity});
      ASSERT_EQ(capped.size() > 0, expected.has_value());
      if (!expected.has_value()) continue;
      EXPECT_EQ(front.cost(*point), *expected);
      EXPECT_EQ(tree.cost, *expected);
      EXPECT_EQ(capped.cost(capped.size() - 1), *expected);
    }
  }
}

TEST(Knapsack, EveryPointIsWhatItsItemsSumUpTo) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const std::vector<KnapsackClass> classes = RandomClasses(random);
    for (const int32_t max_states : {4, 1 << 16}) {
      const KnapsackFront front(classes, {.max_states = max_states});
      ASSERT_GT(front.size(), 0);
      for (int32_t p = 0; p < front.size(); ++p) {
        const std::vector<int32_t> items = front.Items(p);
        ASSERT_EQ(items.size(), classes.size());
        int64_t weight = 0;
        int64_t cost = 0;
        for (size_t i = 0; i < items.size(); ++i) {
          weight += classes[i][static_cast<size_t>(items[i])].weight;
          cost += classes[i][static_cast<size_t>(items[i])].cost;
        }
        EXPECT_EQ(front.weight(p), weight);
        EXPECT_EQ(front.cost(p), cost);
        if (p == 0) continue;
        EXPECT_LT(front.weight(p - 1), front.weight(p));
        EXPECT_GT(front.cost(p - 1), front.cost(p));
      }
    }
  }
}

TEST(Knapsack, EqualClassesNeedFewStatesAndATightBudgetStaysFeasible) {
  // 80 layers alike: 81 sums, not 2^80.
  const KnapsackClass layer = {{.cost = 0, .weight = 17},
                               {.cost = 3, .weight = 1}};
  const std::vector<KnapsackClass> layers(80, layer);
  const KnapsackFront front(layers);
  EXPECT_TRUE(front.exact());
  EXPECT_EQ(front.size(), 81);

  Random random(7);
  std::vector<KnapsackClass> many(20, KnapsackClass(4));
  for (KnapsackClass& items : many) {
    for (KnapsackItem& item : items) {
      item = {.cost = random.Below(1'000'000),
              .weight = random.Below(1'000'000)};
    }
  }
  const KnapsackFront exact(many, {.max_states = 1 << 18});
  const KnapsackFront thin(many, {.max_states = 64});
  EXPECT_FALSE(thin.exact());
  EXPECT_EQ(thin.weight(0), exact.weight(0));
  for (int32_t p = 0; p < thin.size(); ++p) {
    EXPECT_GE(thin.cost(p), exact.cost(*exact.Best(thin.weight(p))));
  }
}

}  // namespace
}  // namespace pipeloom::planner
