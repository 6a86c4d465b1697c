#include "planner/moves/turns/relist_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "planner/construct/list_scheduler.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/retime.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;

WindowLister::Style DrawStyle(Random& random) {
  return {.backwards = random.Below(2) == 0,
          .by_tail = random.Below(2) == 0,
          .noise = static_cast<double>(random.Below(1000)),
          .patience = 0.5 * static_cast<double>(random.Below(3)),
          .keeps_takers = random.Below(2) == 0};
}

TEST(WindowListerTest, AnAcceptedWindowKeepsTheLimitsAndTheTimeThatItPromises) {
  int accepted = 0;
  int shorter = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomGraphOptions options;
    options.max_ranks = 4;
    options.max_microbatches = 8;
    options.with_memory_limits = true;
    const FlatGraph flat(RandomGraph(seed, options));
    ListScheduler lists(flat);
    if (!lists.CanRun()) continue;
    lists.Run({});
    Random random(seed);
    WindowLister lister(flat);
    lister.Start(lists.sequence());
    EXPECT_EQ(lister.time(), Retimer(flat).Retime(lists.sequence()));
    const int64_t n = flat.num_tasks;
    for (int i = 0; i < 100; ++i) {
      const int64_t size = std::min<int64_t>(n, 1 + random.Below(30));
      const int64_t begin = random.Below(n - size + 1);
      const std::vector<int32_t> before = lister.sequence();
      const int64_t time_before = lister.time();
      const bool may_gain =
          lister.Choose(static_cast<size_t>(begin), static_cast<size_t>(size));
      const int64_t time =
          lister.Try(DrawStyle(random), time_before + 200, random);
      if (time >= kNoLimit) continue;
      ++accepted;
      lister.Accept();
      const std::vector<int32_t>& after = lister.sequence();
      EXPECT_TRUE(
          std::is_permutation(after.begin(), after.end(), before.begin()));
      EXPECT_TRUE(
          std::equal(after.begin(), after.begin() + begin, before.begin()));
      EXPECT_TRUE(std::equal(after.begin() + begin + size, after.end(),
                             before.begin() + begin + size));
      EXPECT_TRUE(FitsMemory(flat, after));
      EXPECT_EQ(lister.time(), Retimer(flat).Retime(after));
      // No path through the window is longer than promised; others are as long
      // as before.
      EXPECT_GE(lister.time(), time);
      EXPECT_LE(lister.time(), std::max(time, time_before));
      EXPECT_TRUE(may_gain || lister.time() >= time_before);
      shorter += lister.time() < time_before ? 1 : 0;
    }
  }
  EXPECT_GE(accepted, 1000);
  EXPECT_GE(shorter, 50);
}

TEST(WindowListerTest, AWindowOfAllTasksIsAScheduleOfTheStep) {
  int optimal = 0;
  int problems = 0;
  for (uint64_t seed = 0; problems < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomGraphOptions options;
    options.max_ranks = 3;
    options.max_segments = 2;
    options.max_microbatches = 3;
    const StageGraph graph = RandomGraph(seed, options);
    if (graph.num_tasks() > 10) continue;
    ++problems;
    const FlatGraph flat(graph);
    ListScheduler lists(flat);
    lists.Run({});
    WindowLister lister(flat);
    lister.Start(lists.sequence());
    const int64_t optimum = BruteForceStepTime(graph)->count();
    Random random(seed);
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(lister.Choose(0, static_cast<size_t>(flat.num_tasks)));
      const int64_t time = lister.Try(DrawStyle(random), kNoLimit, random);
      if (time >= kNoLimit) continue;
      EXPECT_GE(time, optimum);
      if (time >= lister.time()) continue;
      lister.Accept();
      EXPECT_EQ(lister.time(), time);
    }
    optimal += lister.time() == optimum ? 1 : 0;
  }
  EXPECT_GE(optimal, 95);
}

TEST(RelistWindowsTest, KeepsToItsRoundsAndGainsOften) {
  EXPECT_GE(CheckRoundsOf<RelistWindows>(20), 15);
}

TEST(RelistWindowsTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<RelistWindows>(60), 40);
}

TEST(RelistWindowsTest, ForgetsAtARestart) {
  CheckForgetsAtRestart<RelistWindows>();
}

}  // namespace
}  // namespace pipeloom::planner
