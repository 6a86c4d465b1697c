#include "planner/moves/sequence_search.h"

#include <gtest/gtest.h>

#include "planner/construct/list_scheduler.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;

TEST(SequenceSearchTest, StaysLegalNeverWorsensAndReportsTrueTimes) {
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
    SequenceSearch search(flat);
    search.Start(scheduler.sequence());
    EXPECT_EQ(search.best_time(), before);
    Random random(seed);
    for (const double temperature : {3000.0, 500.0, 0.0}) {
      search.Run(200, temperature, /*target=*/0, random);
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          TimeSchedule(graph, OrdersOf(flat, search.best_sequence())));
      ASSERT_THAT(ValidateSchedule(graph, schedule), IsOk());
      EXPECT_EQ(schedule.step_time(), Nanoseconds(search.best_time()));
      EXPECT_LE(search.best_time(), before);
    }
  }
}

TEST(SequenceSearchTest, FindsTheZeroBubbleOrderFromOneFOneB) {
  // The list scheduler with W ahead of F leaves bubbles that moves close.
  const StageGraph graph = testing::UniformGraph(
      {.ranks = 2, .microbatches = 6, .split_backward = true});
  const FlatGraph flat(graph);
  std::vector<int32_t> one_by_one;
  for (int32_t t = 0; t < flat.num_tasks; ++t) one_by_one.push_back(t);
  SequenceSearch search(flat);
  search.Start(one_by_one);
  Random random(1);
  search.Run(20000, 300000, Milliseconds(19).count(), random);
  EXPECT_EQ(Nanoseconds(search.best_time()), Milliseconds(19));
}

}  // namespace
}  // namespace pipeloom::planner
