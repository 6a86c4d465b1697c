#include "planner/memory/smallest_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "planner/search/search_graph.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/branching_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BranchingProblem;
using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::UniformGraph;
using ::testing::HasSubstr;

// With static memory that differs by rank.
StageGraph WithLimit(const StageGraph& graph, int64_t limit) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (const RankId r : ranks.ids()) {
    ranks[r].memory.limit = Bytes(limit);
    ranks[r].memory.weights = Bytes(3 * r.value());
  }
  return graph.WithRanks(std::move(ranks));
}

SearchBudget Evaluations(int64_t count) {
  SearchBudget budget;
  budget.max_evaluations = count;
  return budget;
}

// Trying every limit from 1 B on, each by brute force.
int64_t ByBruteForce(const StageGraph& graph) {
  for (int64_t limit = 1;; ++limit) {
    if (BruteForceStepTime(WithLimit(graph, limit)).has_value()) return limit;
  }
}

TEST(SmallestLimitTest, IsThatOfBruteForceOnSmallProblems) {
  int below_one_by_one = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = WithLimit(BranchingProblem(seed, 10), 1);
    const SmallestLimit limit = FindSmallestLimit(graph);
    EXPECT_TRUE(limit.proven());
    EXPECT_EQ(std::max<int64_t>(1, limit.enough), ByBruteForce(graph));
    if (limit.enough < 2) continue;
    const auto refused =
        SearchGraph(WithLimit(graph, limit.enough - 1), 1, Evaluations(1));
    EXPECT_FALSE(refused.ok());
    const std::string text(refused.status().message());
    below_one_by_one += text.find("found is " + std::to_string(limit.enough) +
                                  " B") == std::string::npos;
  }
  // Where the order within a microbatch matters.
  EXPECT_GT(below_one_by_one, 0);
}

// A few sets are not enough to decide: then the ends lie around the answer.
TEST(SmallestLimitTest, EndsHoldForAnyBudget) {
  int open = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = WithLimit(BranchingProblem(seed, 24), 1);
    const SmallestLimit exact = FindSmallestLimit(graph);
    ASSERT_TRUE(exact.proven());
    for (const int64_t sets : {0, 4, 20, 60}) {
      const SmallestLimit limit = FindSmallestLimit(graph, sets);
      EXPECT_LE(limit.at_least, exact.at_least);
      EXPECT_GE(limit.enough, exact.enough);
      open += limit.proven() ? 0 : 1;
    }
  }
  EXPECT_GT(open, 0);
}

TEST(SmallestLimitTest, OfLargePipelinesIsWhatOneMicrobatchHoldsOnARank) {
  for (const bool vee : {false, true}) {
    const StageGraph graph = UniformGraph({.ranks = 8,
                                           .chunks = 4,
                                           .microbatches = 64,
                                           .vee = vee,
                                           .split_backward = true,
                                           .limit = Bytes(1)});
    const SmallestLimit limit = FindSmallestLimit(graph);
    EXPECT_EQ(limit.at_least, 4000);
    EXPECT_EQ(limit.enough, 4000);
  }
}

TEST(SmallestLimitTest, IsInTheSearchesAnswer) {
  EXPECT_THAT(
      SearchGraph(UniformGraph({.chunks = 3, .limit = Bytes(2500)}), 1,
                  Evaluations(10)),
      FailsWith(
          absl::StatusCode::kResourceExhausted,
          HasSubstr(
              "its tasks fit a limit of 3000 B and none below (proven)")));
}

TEST(SmallestLimitTest, OfRanksWithDifferentLimitsIsSaidToBeOneForAll) {
  const StageGraph uniform = UniformGraph({.chunks = 3, .limit = Bytes(2500)});
  IdVector<RankId, RankSpec> ranks = uniform.ranks();
  ranks[RankId(0)].memory.limit = Bytes(0);
  EXPECT_THAT(
      SearchGraph(uniform.WithRanks(std::move(ranks)), 1, Evaluations(10)),
      FailsWith(absl::StatusCode::kResourceExhausted,
                HasSubstr("; with the same limit on all ranks its tasks fit "
                          "3000 B and none below (proven)")));
}

TEST(SmallestLimitTest, BisectionEndsWithinAPercentOfWhatWorks) {
  for (const int64_t least : {700L, 5'000L, 7L << 20, 25L << 30, 900L << 30}) {
    SCOPED_TRACE(least);
    const auto works = [&](Bytes limit) { return limit.count() >= least; };
    const std::optional<Bytes> found =
        FindLimitThatWorks(Bytes(least / 3), Bytes(least / 2), works, {}, {});
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(works(*found));
    EXPECT_LE(static_cast<double>(found->count()),
              1.02 * static_cast<double>(least));
    // Above a kibibyte not every size can be printed.
    if (least > 1024) {
      EXPECT_EQ(*found, RoundUpAsFormatted(*found - Bytes(1)));
    }
    // Late, the first that works is good enough.
    const std::optional<Bytes> late = FindLimitThatWorks(
        Bytes(least / 3), Bytes(2 * least), works, [] { return true; }, {});
    ASSERT_TRUE(late.has_value());
    EXPECT_GE(*late, Bytes(2 * least));
  }
  EXPECT_EQ(FindLimitThatWorks(Bytes(1), Bytes(2), [](Bytes) { return false; },
                               {}, {}),
            std::nullopt);
}

TEST(SmallestLimitTest, OfAnEmptyGraphIsItsStaticMemory) {
  EXPECT_TRUE(FindSmallestLimit(StageGraph()).proven());
  EXPECT_EQ(FindSmallestLimit(StageGraph()).enough, 0);
}

}  // namespace
}  // namespace pipeloom::planner
