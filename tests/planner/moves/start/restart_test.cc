#include "planner/moves/start/restart.h"

#include <gtest/gtest.h>

#include <algorithm>

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
      int64_t least = state.best();
      for (int start = 0; start < 12; ++start) {
        problem.Run(&move, 100'000);
        EXPECT_LE(state.best(), least);
        least = std::min(least, state.best_time());
        EXPECT_EQ(state.best(), least);
        ExpectLegalBest(problem);
        Retimer retimer(problem.flat);
        EXPECT_EQ(retimer.Retime(state.best_sequence()), state.best_time());
      }
      EXPECT_LT(least, problem.first);
      // Mixes some of them from the third start on.
      EXPECT_GE(state.elites().size(), 2);
    }
  }
}

TEST(RestartTest, HasNoWorkIfMicrobatchesAreEqual) {
  const MoveProblem equal(ScaledPipeline({2, 2, 2}));
  EXPECT_FALSE(Restart(*equal.state).has_work());
  const MoveProblem unequal(ScaledPipeline({1, 2, 3}));
  EXPECT_TRUE(Restart(*unequal.state).has_work());
  const MoveProblem dominated(DominatedPipeline(1));
  EXPECT_TRUE(Restart(*dominated.state).has_work());
}

TEST(RestartTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<Restart>(60), 50);
}

}  // namespace
}  // namespace pipeloom::planner
