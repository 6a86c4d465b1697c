#include "planner/moves/tabu_search.h"

#include <gtest/gtest.h>

#include "planner/construct/list_scheduler.h"
#include "planner/core/retime.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::SmallProblem;

TEST(TabuSearchTest, StaysLegalNeverWorsensAndReportsTrueTimes) {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_segments = 3;
  options.max_microbatches = 6;
  options.with_memory_limits = true;
  options.with_epilogues = true;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    const FlatGraph flat(graph);
    ListScheduler scheduler(flat);
    ASSERT_TRUE(scheduler.CanRun());
    const int64_t before = scheduler.Run({});
    TabuSearch search(flat);
    search.Start(scheduler.sequence());
    EXPECT_EQ(search.best_time(), before);
    Random random(seed);
    Retimer retimer(flat);
    for (int round = 0; round < 20; ++round) {
      search.Run(10, /*target=*/0, random);
      // The current order too, which may be worse than the best.
      ASSERT_OK_AND_ASSIGN(
          const Schedule current,
          TimeSchedule(graph, OrdersOf(flat, search.sequence())));
      ASSERT_THAT(ValidateSchedule(graph, current), IsOk());
      EXPECT_EQ(current.step_time(), Nanoseconds(search.current_time()));
      EXPECT_EQ(retimer.Retime(search.sequence()), search.current_time());
      EXPECT_EQ(retimer.Retime(search.best_sequence()), search.best_time());
      EXPECT_LE(search.best_time(), before);
      EXPECT_LE(search.best_time(), search.current_time());
    }
  }
}

TEST(TabuSearchTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  int problems = 0;
  int met = 0;
  for (uint64_t seed = 0; problems < 300; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto optimum = BruteForceStepTime(*graph);
    ASSERT_TRUE(optimum.has_value());
    const FlatGraph flat(*graph);
    ListScheduler scheduler(flat);
    scheduler.Run({});
    TabuSearch search(flat);
    search.Start(scheduler.sequence());
    Random random(seed);
    search.Run(200, optimum->count(), random);
    ASSERT_GE(search.best_time(), optimum->count());
    if (search.best_time() == optimum->count()) ++met;
  }
  EXPECT_GE(met, 270) << "of " << problems;
}

TEST(TabuSearchTest, FindsTheZeroBubbleOrderFromOneByOne) {
  const StageGraph graph = testing::UniformGraph(
      {.ranks = 2, .microbatches = 6, .split_backward = true});
  const FlatGraph flat(graph);
  std::vector<int32_t> one_by_one;
  for (int32_t t = 0; t < flat.num_tasks; ++t) one_by_one.push_back(t);
  TabuSearch search(flat);
  search.Start(one_by_one);
  Random random(1);
  search.Run(5000, Milliseconds(19).count(), random);
  EXPECT_EQ(Nanoseconds(search.best_time()), Milliseconds(19));
}

TEST(TabuSearchTest, StopsWhereNothingCanMove) {
  // One task a rank: no two tasks share one.
  const StageGraph graph =
      testing::UniformGraph({.ranks = 4, .microbatches = 1});
  const FlatGraph flat(graph);
  ListScheduler scheduler(flat);
  const int64_t before = scheduler.Run({});
  TabuSearch search(flat);
  search.Start(scheduler.sequence());
  Random random(1);
  EXPECT_LT(search.Run(100, 0, random), 100);
  EXPECT_EQ(search.best_time(), before);
}

}  // namespace
}  // namespace pipeloom::planner
