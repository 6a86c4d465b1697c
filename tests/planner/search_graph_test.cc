#include "planner/search_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "planner/executor.h"
#include "planner/list_scheduler.h"
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
                        HasSubstr("1 B over the limit of 1999 B")));
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
