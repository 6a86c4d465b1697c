#include "planner/moves/start/drawn_choices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

void ExpectPermutation(std::vector<int32_t> order, const OrderUnits& units) {
  std::sort(order.begin(), order.end());
  ASSERT_EQ(order.size(), static_cast<size_t>(units.num_units()));
  for (int32_t u = 0; u < units.num_units(); ++u) ASSERT_EQ(order[u], u);
}

TEST(DrawnChoicesTest, EveryDrawnChoiceOrdersAllUnits) {
  const MoveProblem problem(DominatedPipeline(1));
  Random random(1);
  std::set<std::vector<int32_t>> orders;
  for (int i = 0; i < 200; ++i) {
    for (const auto& order : {DrawOrder(problem.units, random),
                              DrawChoice(problem.units, {}, random).order,
                              DrawSpread(problem.spread, random).order}) {
      ExpectPermutation(order, problem.units);
      orders.insert(order);
    }
  }
  EXPECT_GT(orders.size(), 50);
}

TEST(DrawnChoicesTest, AnOrderHasItsHeaviestMicrobatchBeforeTheLightestTail) {
  // Loads so different that the noise of 20 % does not change their order: up
  // to a quarter of the units is moved to the front, the others descend.
  const MoveProblem problem(ScaledPipeline({1, 4, 16, 64, 256, 2, 8, 32}));
  Random random(2);
  for (int i = 0; i < 50; ++i) {
    const std::vector<int32_t> order = DrawOrder(problem.units, random);
    const auto heaviest =
        std::max_element(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return problem.units.load[a] < problem.units.load[b];
        });
    EXPECT_LE(heaviest - order.begin(), problem.units.num_units() / 4);
    for (auto at = heaviest; at + 1 != order.end(); ++at) {
      EXPECT_GE(problem.units.load[*at], problem.units.load[*(at + 1)]);
    }
  }
}

}  // namespace
}  // namespace pipeloom::planner
