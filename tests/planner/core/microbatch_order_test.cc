#include "planner/core/microbatch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "formats/graph/problem_suite.h"
#include "planner/core/flat_graph.h"
#include "planner/moves/order_search.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HeavyMiddleTest, LoadsGrowToTheMiddleAndFallToTheEnd) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int64_t> loads(static_cast<size_t>(1 + random.Below(20)));
    for (int64_t& load : loads) load = random.Below(10);
    const std::vector<int32_t> order = HeavyMiddle(loads);
    std::vector<int32_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) {
      ASSERT_EQ(sorted[i], static_cast<int32_t>(i));
    }
    std::vector<int64_t> in_order;
    for (const int32_t item : order) {
      in_order.push_back(loads[static_cast<size_t>(item)]);
    }
    if (std::equal(loads.begin() + 1, loads.end(), loads.begin())) continue;
    const auto middle =
        in_order.begin() + static_cast<int64_t>(in_order.size()) / 2;
    EXPECT_TRUE(std::is_sorted(in_order.begin(), middle + 1));
    EXPECT_TRUE(std::is_sorted(middle, in_order.end(), std::greater<>()));
  }
}

TEST(HeavyMiddleTest, TakesPlacesByTurns) {
  EXPECT_THAT(HeavyMiddle({}), IsEmpty());
  EXPECT_THAT(HeavyMiddle({7}), ElementsAre(0));
  EXPECT_THAT(HeavyMiddle({1, 2}), ElementsAre(0, 1));
  EXPECT_THAT(HeavyMiddle({9, 1, 8, 2, 7}), ElementsAre(1, 4, 0, 2, 3));
  EXPECT_THAT(HeavyMiddle({5, 5, 5}), ElementsAre(0, 1, 2));
}

TEST(UnitsInOrderTest, KeepsUnitsOfAMicrobatchTogetherAndByIndex) {
  EXPECT_THAT(UnitsInOrder({2, 0, 1}, {0, 1, 2, 0, 2, 1}),
              ElementsAre(2, 4, 0, 3, 1, 5));
}

// The claim of the header, by list schedules of pipelines of uneven
// microbatches.
TEST(HeavyMiddleTest, MakesStepsShorterThanOtherOrdersByWork) {
  int64_t as_given = 0;
  int64_t heavy_first = 0;
  int64_t light_first = 0;
  int64_t heavy_middle = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    formats::PipelineModule module{.name = "model",
                                   .chunks = 1,
                                   .forward = Microseconds(1000),
                                   .backward = Microseconds(2000),
                                   .activation = Bytes(1000)};
    for (int i = 0; i < 12; ++i) {
      module.scale.push_back(0.2 + 2 * random.Unit());
    }
    const formats::PipelineProblem problem{.ranks = 6,
                                           .microbatches = 12,
                                           .split_backward = false,
                                           .modules = {module}};
    ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                         formats::MakePipelineGraph("uneven", problem));
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    OrderEvaluator evaluator(flat, units);
    const auto time = [&](std::vector<int32_t> order) {
      return evaluator.Evaluate({.order = std::move(order)});
    };
    std::vector<int32_t> order(units.load.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
    }
    as_given += time(order);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return units.load[static_cast<size_t>(a)] <
             units.load[static_cast<size_t>(b)];
    });
    light_first += time(order);
    std::reverse(order.begin(), order.end());
    heavy_first += time(order);
    heavy_middle += time(HeavyMiddle(units.load));
  }
  EXPECT_LT(heavy_middle, as_given);
  EXPECT_LT(heavy_middle, light_first);
  EXPECT_LT(heavy_middle, heavy_first);
}

}  // namespace
}  // namespace pipeloom::planner
