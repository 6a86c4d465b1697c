#include "planner/search/search_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "planner/construct/list_scheduler.h"
#include "planner/core/executor.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;
using ::testing::HasSubstr;

SearchBudget Evaluations(int64_t count, int32_t threads = 1) {
  SearchBudget budget;
  budget.max_evaluations = count;
  budget.threads = threads;
  return budget;
}

StageGraph Medium(uint64_t seed) {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_segments = 3;
  options.max_microbatches = 8;
  options.with_memory_limits = true;
  return RandomGraph(seed, options);
}

TEST(SearchGraphTest, LiesBetweenItsBoundAndTheOptimumOnSmallProblems) {
  int problems = 0;
  int optimal = 0;
  for (uint64_t seed = 0; problems < 1000; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    ASSERT_OK_AND_ASSIGN(const SearchResult result,
                         SearchGraph(*graph, seed, Evaluations(400)));
    ASSERT_THAT(ValidateSchedule(*graph, result.schedule), IsOk());
    const auto optimum = BruteForceStepTime(*graph);
    ASSERT_TRUE(optimum.has_value());
    EXPECT_GE(result.schedule.step_time(), *optimum);
    EXPECT_LE(result.lower_bound, *optimum);
    EXPECT_EQ(result.proven_optimal,
              result.schedule.step_time() == result.lower_bound);
    optimal += result.schedule.step_time() == *optimum;
  }
  EXPECT_GE(optimal, 950);
}

TEST(SearchGraphTest, GivesTheSameAnswerForAnyNumberOfThreads) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = Medium(seed);
    for (const int64_t evaluations : {1, 2, 50, 1500}) {
      ASSERT_OK_AND_ASSIGN(const SearchResult one,
                           SearchGraph(graph, 5, Evaluations(evaluations, 1)));
      EXPECT_LE(one.evaluations, evaluations + 16);
      for (const int32_t threads : {2, 4}) {
        ASSERT_OK_AND_ASSIGN(
            const SearchResult other,
            SearchGraph(graph, 5, Evaluations(evaluations, threads)));
        EXPECT_EQ(one.schedule, other.schedule);
        EXPECT_EQ(one.evaluations, other.evaluations);
      }
    }
  }
}

TEST(SearchGraphTest, MoreEvaluationsAreNeverWorseThanTheFirstAnswer) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = Medium(seed);
    ASSERT_OK_AND_ASSIGN(const SearchResult first,
                         SearchGraph(graph, 1, Evaluations(1)));
    ASSERT_OK_AND_ASSIGN(const SearchResult more,
                         SearchGraph(graph, 1, Evaluations(600)));
    EXPECT_EQ(first.evaluations, 1);
    EXPECT_LE(more.schedule.step_time(), first.schedule.step_time());
  }
}

TEST(SearchGraphTest, ADeadlineThatIsOverStillGivesALegalSchedule) {
  const StageGraph graph = Medium(4);
  SearchBudget budget;
  budget.expired = [] { return true; };
  budget.threads = 2;
  ASSERT_OK_AND_ASSIGN(const SearchResult result,
                       SearchGraph(graph, 1, budget));
  EXPECT_THAT(ValidateSchedule(graph, result.schedule), IsOk());
  EXPECT_EQ(result.evaluations, 1);
}

TEST(SearchGraphTest, StopsWhenAskedTo) {
  // A problem whose bound is out of reach, so that nothing else ends it.
  const StageGraph graph = UniformGraph({.ranks = 4,
                                         .chunks = 2,
                                         .vee = true,
                                         .split_backward = true,
                                         .limit = Bytes(3000)});
  std::stop_source source;
  std::atomic<int> asked = 0;
  SearchBudget budget;
  budget.threads = 2;
  budget.stop = source.get_token();
  budget.expired = [&] {
    if (++asked == 50) source.request_stop();
    return false;
  };
  ASSERT_OK_AND_ASSIGN(const SearchResult result,
                       SearchGraph(graph, 1, budget));
  EXPECT_THAT(ValidateSchedule(graph, result.schedule), IsOk());
  EXPECT_FALSE(result.proven_optimal);
  EXPECT_GT(result.evaluations, 1);
}

TEST(SearchGraphTest, AnswersTheTightestMemoryAndExplainsWhatIsTooTight) {
  for (const int64_t chunks : {2, 3, 5}) {
    const StageGraph graph = UniformGraph({.ranks = 4,
                                           .chunks = 2,
                                           .microbatches = 8,
                                           .vee = true,
                                           .split_backward = true,
                                           .limit = Bytes(1000 * chunks)});
    ASSERT_OK_AND_ASSIGN(const SearchResult result,
                         SearchGraph(graph, 1, Evaluations(500)));
    EXPECT_THAT(ValidateSchedule(graph, result.schedule), IsOk());
  }
  EXPECT_THAT(SearchGraph(UniformGraph(
                              {.chunks = 2, .vee = true, .limit = Bytes(1999)}),
                          1, Evaluations(10)),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        HasSubstr("1 B over the limit of 1.95 KiB")));
}

TEST(SearchGraphTest, ProvesUniformPipelinesWithSplitBackward) {
  const StageGraph graph = UniformGraph({.ranks = 4,
                                         .microbatches = 8,
                                         .split_backward = true,
                                         .limit = Bytes(4000)});
  ASSERT_OK_AND_ASSIGN(const SearchResult result,
                       SearchGraph(graph, 1, Evaluations(5000)));
  EXPECT_TRUE(result.proven_optimal);
  EXPECT_EQ(result.schedule.makespan(), Milliseconds(27));
}

TEST(GraphSearchTest, GoesOnWhereItStopped) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = Medium(seed);
    ASSERT_OK_AND_ASSIGN(const SearchResult one,
                         SearchGraph(graph, 1, Evaluations(200)));
    GraphSearch search(graph, 1);
    EXPECT_EQ(search.graph(), graph);
    ASSERT_OK_AND_ASSIGN(SearchResult best, search.Run(Evaluations(200)));
    EXPECT_EQ(best.schedule, one.schedule);
    EXPECT_EQ(best.evaluations, one.evaluations);
    for (const int64_t evaluations : {1, 7, 400, 1000}) {
      ASSERT_OK_AND_ASSIGN(const SearchResult next,
                           search.Run(Evaluations(evaluations)));
      EXPECT_THAT(ValidateSchedule(graph, next.schedule), IsOk());
      EXPECT_LE(next.schedule.step_time(), best.schedule.step_time());
      EXPECT_LE(next.evaluations, evaluations + 16);
      EXPECT_EQ(next.evaluations == 0, best.proven_optimal);
      best = next;
    }
  }
}

TEST(GraphSearchTest, BeginsHoweverLittleTheFirstRunMayDo) {
  const StageGraph graph = UniformGraph({.ranks = 4,
                                         .microbatches = 8,
                                         .split_backward = true,
                                         .limit = Bytes(4000)});
  GraphSearch search(graph, 1);
  ASSERT_OK_AND_ASSIGN(const SearchResult first, search.Run(Evaluations(1)));
  EXPECT_FALSE(first.proven_optimal);
  ASSERT_OK_AND_ASSIGN(const SearchResult rest, search.Run(Evaluations(5000)));
  EXPECT_TRUE(rest.proven_optimal);
  EXPECT_EQ(rest.schedule.makespan(), Milliseconds(27));
}

TEST(GraphSearchTest, InheritsFromTheSameTasksUnderOtherLimits) {
  int differ = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = Medium(seed);
    IdVector<RankId, RankSpec> ranks = graph.ranks();
    for (RankSpec& rank : ranks) rank.memory.limit += Bytes(1);
    const StageGraph wider = graph.WithRanks(ranks);
    std::optional<SearchResult> before;
    for (const int32_t threads : {1, 2}) {
      GraphSearch earlier(wider, 1);
      ASSERT_OK_AND_ASSIGN(const SearchResult wide,
                           earlier.Run(Evaluations(300, threads)));
      EXPECT_LE(wide.evaluations, 316);
      GraphSearch search(graph, 2);
      search.Inherit(earlier);
      ASSERT_OK_AND_ASSIGN(const SearchResult found,
                           search.Run(Evaluations(500, threads)));
      EXPECT_THAT(ValidateSchedule(graph, found.schedule), IsOk());
      EXPECT_GE(found.schedule.step_time(), found.lower_bound);
      EXPECT_LE(found.evaluations, 516);
      if (before.has_value()) {
        EXPECT_EQ(found.schedule, before->schedule);
      }
      before = found;
    }
    ASSERT_OK_AND_ASSIGN(const SearchResult anew,
                         SearchGraph(graph, 2, Evaluations(500)));
    differ += before->schedule != anew.schedule;
  }
  // Else nothing was inherited.
  EXPECT_GT(differ, 0);
}

TEST(SearchBudgetTest, PartsHaveTheirOwnEvaluationsAndShares) {
  double used = 0.2;
  SearchBudget whole = Evaluations(1000);
  whole.spent = [&] { return used; };
  const SearchBudget part = whole.PartUntil(0.6, 150);
  EXPECT_EQ(part.max_evaluations, 450);
  EXPECT_DOUBLE_EQ(part.spent(), 0);
  const SearchBudget half = part.Until(0.5);
  EXPECT_EQ(half.max_evaluations, 225);
  used = 0.39;
  EXPECT_FALSE(half.Exhausted(0));
  used = 0.41;
  EXPECT_TRUE(half.Exhausted(0));
  EXPECT_FALSE(part.Exhausted(449));
  EXPECT_TRUE(part.Exhausted(450));
  used = 0.6;
  EXPECT_TRUE(part.Exhausted(0));
  EXPECT_DOUBLE_EQ(whole.PartUntil(0.5, 0).spent(), 1);
}

TEST(SearchGraphTest, TakesAnEmptyGraph) {
  ASSERT_OK_AND_ASSIGN(const SearchResult result,
                       SearchGraph(StageGraph(), 1, Evaluations(10)));
  EXPECT_TRUE(result.proven_optimal);
}

TEST(ParallelForTest, CallsEachIndexOnce) {
  for (const int32_t threads : {0, 1, 2, 8}) {
    std::vector<std::atomic<int>> calls(37);
    ParallelFor(threads, 37, [&](int32_t i) { ++calls[i]; });
    for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
  }
}

}  // namespace
}  // namespace pipeloom::planner
