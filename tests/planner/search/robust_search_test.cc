#include "planner/search/robust_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "planner/search/search_graph.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::RandomOrders;
using ::pipeloom::testing::UniformGraph;
using ::testing::HasSubstr;

SearchBudget Evaluations(int64_t count, int32_t threads = 1) {
  SearchBudget budget;
  budget.max_evaluations = count;
  budget.threads = threads;
  return budget;
}

// Every sample timed by the library's own schedule timing.
TEST(RobustSearchTest, QuantilesAreThoseOfAllSamplesTimedOneByOne) {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_microbatches = 4;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    Random random(seed);
    const RankOrders orders = RandomOrders(graph, random);
    FlatGraph flat(graph);
    const DisturbanceJudge judge(flat, {.samples = 30, .seed = seed});
    ASSERT_EQ(judge.num_samples(), 32);
    const RobustTimes times = judge.Judge(Linearize(flat, orders));
    std::vector<Duration> all;
    for (int32_t s = 0; s < 32; ++s) {
      IdVector<TaskId, Task> tasks = graph.tasks();
      const std::vector<int64_t> durations = judge.DurationsOf(s);
      for (const TaskId t : tasks.ids()) {
        tasks[t].duration = Nanoseconds(durations[t.value()]);
      }
      ASSERT_OK_AND_ASSIGN(
          const StageGraph slow,
          StageGraph::Create("slow", graph.ranks(), graph.module_names(),
                             std::move(tasks), graph.edges()));
      ASSERT_OK_AND_ASSIGN(const Schedule timed, TimeSchedule(slow, orders));
      all.push_back(timed.step_time());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(times.p50, all[15]);
    EXPECT_EQ(times.p90, all[28]);  // 29 of 32 are no slower: 90.6 %.
    ASSERT_OK_AND_ASSIGN(const Schedule nominal, TimeSchedule(graph, orders));
    EXPECT_EQ(times.nominal, nominal.step_time());
  }
}

TEST(RobustSearchTest, WithoutDisturbancesEveryQuantileIsNominal) {
  const StageGraph graph = UniformGraph({});
  const FlatGraph flat(graph);
  Random random(3);
  const DisturbanceJudge judge(flat, {.jitter = 0, .slow_rank = 1});
  const RobustTimes times =
      judge.Judge(Linearize(flat, RandomOrders(graph, random)));
  EXPECT_EQ(times.p50, times.nominal);
  EXPECT_EQ(times.p90, times.nominal);
}

// Judged on samples that the choice has not seen.
TEST(RobustSearchTest, TheChoiceIsBetterOnFreshSamples) {
  double before = 0;
  double after = 0;
  int changed = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const StageGraph graph = UniformGraph(
        {.ranks = 4,
         .chunks = 2,
         .microbatches = 10,
         .vee = true,
         .split_backward = true,
         .forward = Microseconds(1000 + 100 * static_cast<double>(seed)),
         .delay = Microseconds(100),
         .limit = Bytes(8000)});
    ASSERT_OK_AND_ASSIGN(const SearchResult found,
                         SearchGraph(graph, seed, Evaluations(300)));
    const Disturbances seen{.jitter = 0.1, .slow_rank = 1.2, .seed = 1};
    ASSERT_OK_AND_ASSIGN(const RobustResult robust,
                         RobustSearch(graph, found.schedule.order, seen, seed,
                                      Evaluations(4000)));
    EXPECT_LE(robust.chosen.p90, robust.nominal.p90);
    EXPECT_GE(robust.chosen.nominal, found.lower_bound);
    changed += robust.order != found.schedule.order;
    ASSERT_OK_AND_ASSIGN(const Schedule chosen,
                         TimeSchedule(graph, robust.order));
    EXPECT_TRUE(ValidateSchedule(graph, chosen).ok());
    const FlatGraph flat(graph);
    const DisturbanceJudge fresh(
        flat,
        {.jitter = 0.1, .slow_rank = 1.2, .samples = 512, .seed = 99 + seed});
    before += ToSeconds(fresh.Judge(Linearize(flat, found.schedule.order)).p90);
    after += ToSeconds(fresh.Judge(Linearize(flat, robust.order)).p90);
  }
  EXPECT_GT(changed, 0);
  EXPECT_LT(after, before);
}

TEST(RobustSearchTest, SameResultForAnyNumberOfThreads) {
  const StageGraph graph = UniformGraph({.chunks = 2, .microbatches = 6});
  ASSERT_OK_AND_ASSIGN(const SearchResult found,
                       SearchGraph(graph, 1, Evaluations(50)));
  ASSERT_OK_AND_ASSIGN(
      const RobustResult one,
      RobustSearch(graph, found.schedule.order, {}, 5, Evaluations(800, 1)));
  ASSERT_OK_AND_ASSIGN(
      const RobustResult four,
      RobustSearch(graph, found.schedule.order, {}, 5, Evaluations(800, 4)));
  EXPECT_EQ(one.order, four.order);
  EXPECT_EQ(one.evaluations, four.evaluations);
}

TEST(RobustSearchTest, ErrorsSayWhatWouldBeRight) {
  const StageGraph graph = UniformGraph({});
  Random random(1);
  const RankOrders orders = RandomOrders(graph, random);
  const struct {
    Disturbances disturbances;
    const char* message;
  } kCases[] = {{{.jitter = -0.1}, "jitter is -0.1"},
                {{.slow_rank = 0.5}, "slow rank is 0.5"},
                {{.samples = 0}, "samples are 0"}};
  for (const auto& c : kCases) {
    const auto result =
        RobustSearch(graph, orders, c.disturbances, 1, Evaluations(1));
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(c.message));
  }
  EXPECT_FALSE(RobustSearch(graph, RankOrders(4), {}, 1, Evaluations(1)).ok());
}

}  // namespace
}  // namespace pipeloom::planner
