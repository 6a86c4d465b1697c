#include "planner/moves/order_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "planner/core/sort_by_key.h"
#include "planner/search/first_choices.h"
#include "planner/search/order_portfolio.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;

RandomGraphOptions Medium() {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_segments = 3;
  options.max_microbatches = 8;
  options.with_memory_limits = true;
  return options;
}

absl::StatusOr<Schedule> Evaluated(const StageGraph& graph,
                                   const FlatGraph& flat,
                                   OrderEvaluator& evaluator,
                                   const OrderChoice& choice) {
  const int64_t time = evaluator.Evaluate(choice);
  auto schedule = TimeSchedule(graph, OrdersOf(flat, evaluator.sequence()));
  if (!schedule.ok()) return schedule.status();
  EXPECT_EQ(schedule->step_time(), Nanoseconds(time));
  return schedule;
}

// Whether the choice gives a legal schedule; only an order of due times, which
// knows nothing of memory, may say that it has none.
void ExpectLegal(const StageGraph& graph, const FlatGraph& flat,
                 OrderEvaluator& evaluator, const OrderChoice& choice) {
  if (choice.rule == PriorityRule::kDue &&
      evaluator.Evaluate(choice) == kNoLimit) {
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(graph, OrdersOf(flat, evaluator.sequence())));
    EXPECT_THAT(ValidateSchedule(graph, schedule),
                FailsWith(absl::StatusCode::kFailedPrecondition,
                          ::testing::HasSubstr("the limit is")));
    return;
  }
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       Evaluated(graph, flat, evaluator, choice));
  EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
}

TEST(OrderSearchTest, EveryFirstChoiceGivesALegalSchedule) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, Medium());
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    OrderEvaluator evaluator(flat, units);
    for (const bool limited : {false, true}) {
      const std::vector<OrderChoice> choices = FirstChoices(units, limited);
      EXPECT_GE(choices.size(), 16u);
      for (const OrderChoice& choice : choices) {
        ExpectLegal(graph, flat, evaluator, choice);
      }
    }
  }
}

// Without a limit, small graphs have time for the whole portfolio without them.
TEST(OrderSearchTest, ThePortfolioOfLargeOrLimitedGraphsHasTheFirstChoices) {
  for (const int32_t microbatches : {10, 40}) {
    for (const int64_t limit : {0, 9000}) {
      const StageGraph graph =
          ::pipeloom::testing::UniformGraph({.ranks = 4,
                                             .chunks = 2,
                                             .microbatches = microbatches,
                                             .limit = Bytes(limit)});
      const FlatGraph flat(graph);
      const OrderUnits units(graph);
      int found = 0;
      for (const OrderChoice& choice : OrderPortfolio(flat, units)) {
        // Only first choices wait for a quarter of a task.
        if (choice.patience == 0.25) ++found;
      }
      EXPECT_EQ(found > 0, limit > 0 || graph.num_tasks() > 600);
    }
  }
}

// 15 equal microbatches on 16 ranks with memory for 11, as one long chain goes
// down and up each. Whatever order of the microbatches and passes they have,
// schedules that leave started ones no room end with all ranks full of first
// chunks, and are a fifth longer.
TEST(OrderSearchTest, ReservingMemoryShortensTightSteps) {
  const StageGraph graph =
      ::pipeloom::testing::UniformGraph({.ranks = 16,
                                         .chunks = 4,
                                         .microbatches = 15,
                                         .split_backward = true,
                                         .forward = Microseconds(1200),
                                         .backward = Microseconds(1500),
                                         .weight_grad = Microseconds(1100),
                                         .limit = Bytes(45000)});
  const FlatGraph flat(graph);
  const OrderUnits units(graph);
  OrderEvaluator evaluator(flat, units);
  int64_t reserving = kNoLimit;
  int64_t greedy = kNoLimit;
  for (OrderChoice choice : FirstChoices(units, /*limited=*/true)) {
    const double reserve = std::exchange(choice.reserve, 0);
    greedy = std::min(greedy, evaluator.Evaluate(choice));
    choice.reserve = reserve;
    reserving = std::min(reserving, evaluator.Evaluate(choice));
  }
  EXPECT_LT(static_cast<double>(reserving), 0.9 * static_cast<double>(greedy));
}

// Other moves gain more there than the many choices after the first.
TEST(OrderSearchTest, ThePortfolioOfLargeLimitedGraphsIsShort) {
  for (const int32_t microbatches : {40, 80}) {
    for (const int64_t limit : {0, 9000}) {
      const StageGraph graph =
          ::pipeloom::testing::UniformGraph({.ranks = 4,
                                             .chunks = 2,
                                             .microbatches = microbatches,
                                             .limit = Bytes(limit)});
      const FlatGraph flat(graph);
      const size_t choices = OrderPortfolio(flat, OrderUnits(graph)).size();
      const bool is_short = limit > 0 && graph.num_tasks() >= 1000;
      SCOPED_TRACE(::testing::Message() << microbatches << ", " << limit);
      EXPECT_EQ(choices == 96, is_short);
    }
  }
}

TEST(OrderSearchTest, EveryChoiceGivesALegalSchedule) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, Medium());
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    OrderEvaluator evaluator(flat, units);
    Random random(seed);
    for (OrderChoice choice : OrderPortfolio(flat, units)) {
      ExpectLegal(graph, flat, evaluator, choice);
      Perturb(&choice, random);
      ExpectLegal(graph, flat, evaluator, choice);
    }
  }
}

// V-Min and V-Half of Qi et al. 2024 on 8 ranks, 24 microbatches and unit costs
// take 85.5 and 80.5 with 8 and 10 chunk activations.
TEST(OrderSearchTest, PatternsReachTheVSchedulesAtLittleMemory) {
  const struct {
    int64_t chunks;
    double at_most_us;
  } cases[] = {{8, 85500}, {10, 82500}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.chunks);
    const StageGraph graph =
        ::pipeloom::testing::UniformGraph({.ranks = 8,
                                           .chunks = 2,
                                           .microbatches = 24,
                                           .vee = true,
                                           .split_backward = true,
                                           .forward = Microseconds(500),
                                           .backward = Microseconds(500),
                                           .weight_grad = Microseconds(500),
                                           .limit = Bytes(1000 * c.chunks)});
    const FlatGraph flat(graph);
    const OrderUnits units(graph);
    OrderEvaluator evaluator(flat, units);
    int64_t best = kNoLimit;
    for (const OrderChoice& choice : OrderPortfolio(flat, units)) {
      if (choice.rule != PriorityRule::kDue) continue;
      best = std::min(best, evaluator.Evaluate(choice));
    }
    EXPECT_LE(ToMicroseconds(Nanoseconds(best)), c.at_most_us);
  }
}

TEST(OrderSearchTest, PerturbKeepsEveryUnitOnce) {
  const StageGraph graph = RandomGraph(3, Medium());
  const FlatGraph flat(graph);
  const OrderUnits units(graph);
  OrderChoice choice = OrderPortfolio(flat, units).front();
  Random random(1);
  for (int i = 0; i < 500; ++i) {
    Perturb(&choice, random);
    std::vector<int32_t> sorted = choice.order;
    std::sort(sorted.begin(), sorted.end());
    for (int32_t u = 0; u < units.num_units(); ++u) EXPECT_EQ(sorted[u], u);
  }
}

TEST(KeySorterTest, SortsAsAStableSortDoes) {
  KeySorter sorter;
  std::vector<int32_t> order;
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> key(static_cast<size_t>(random.Below(300)));
    const int64_t reach = int64_t{1} << random.Below(61);
    for (int64_t& k : key) k = random.Between(-reach, reach);
    std::vector<int32_t> expected(key.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(
        expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
          return key[static_cast<size_t>(a)] < key[static_cast<size_t>(b)];
        });
    sorter.Sort(key, &order);
    EXPECT_EQ(order, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace pipeloom::planner
