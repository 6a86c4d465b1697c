#include "planner/moves/start/restart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(RestartTest, KeepsTheBestOfAllStartsAndFindsLegalNewOnes) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (const bool dominated : {false, true}) {
      MoveProblem problem(
          dominated ? DominatedPipeline(seed) : UnequalPipeline(seed), seed);
      SearchState& state = *problem.state;
      Restart move(state);
      int64_t least = state.overall().time;
      for (int start = 0; start < 12; ++start) {
        problem.Run(&move, 100'000);
        EXPECT_LE(state.overall().time, least);
        least = std::min(least, state.since_start().time);
        EXPECT_EQ(state.overall().time, least);
        ExpectLegalBest(problem);
        Retimer retimer(problem.flat);
        EXPECT_EQ(retimer.Retime(state.since_start().sequence),
                  state.since_start().time);
      }
      EXPECT_LT(least, problem.first);
      // Mixes some of them from the third start on.
      EXPECT_GE(state.elites().size(), 2);
    }
  }
}

// A search that ended in a local optimum of equal microbatches never left it.
TEST(RestartTest, LeavesTheBestOfEqualMicrobatchesToo) {
  const std::vector<int64_t> factors(12, 2);
  MoveProblem problem(ScaledPipeline(factors));
  SearchState& state = *problem.state;
  Restart move(state);
  ASSERT_TRUE(move.has_work());
  const int64_t before = state.overall().time;
  std::set<std::vector<int32_t>> starts;
  for (int start = 0; start < 12; ++start) {
    problem.Run(&move, 100'000);
    EXPECT_LE(state.overall().time, before);
    ExpectLegalBest(problem);
    starts.insert(state.since_start().sequence);
  }
  EXPECT_GE(starts.size(), 2);
}

TEST(RestartTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<Restart>(60), 50);
}

}  // namespace
}  // namespace pipeloom::planner
