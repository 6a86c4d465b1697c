#include "planner/moves/start/improve_first.h"

#include <gtest/gtest.h>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

constexpr int64_t kEnough = 1'000'000;

TEST(ImproveFirstTest, StaysLegalAndGainsWithAndWithoutADominantMicrobatch) {
  int gained = 0;
  int gained_dominated = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem unequal(UnequalPipeline(seed), seed);
    ASSERT_FALSE(unequal.state->has_dominant());
    MoveProblem dominated(DominatedPipeline(seed), seed);
    ASSERT_TRUE(dominated.state->has_dominant());
    for (MoveProblem* problem : {&unequal, &dominated}) {
      ImproveFirst move(*problem->state);
      problem->Run(&move, kEnough);
      EXPECT_FALSE(move.has_work());
      ExpectLegalBest(*problem);
      int& count = problem == &unequal ? gained : gained_dominated;
      count += problem->state->overall().time < problem->first ? 1 : 0;
    }
  }
  EXPECT_GE(gained, 7);
  EXPECT_GE(gained_dominated, 7);
}

TEST(ImproveFirstTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<ImproveFirst>(60), 50);
}

TEST(ImproveFirstTest, GoesOnWhereTheBudgetHasCutItShort) {
  MoveProblem whole(DominatedPipeline(1));
  ImproveFirst at_once(*whole.state);
  whole.Run(&at_once, kEnough);
  MoveProblem problem(DominatedPipeline(1));
  ImproveFirst move(*problem.state);
  for (int round = 0; round < 4; ++round) {
    problem.Run(&move, 50);
    EXPECT_TRUE(move.has_work());
    EXPECT_EQ(problem.state->evaluations(), 50 * (round + 1));
  }
  problem.Run(&move, kEnough);
  EXPECT_FALSE(move.has_work());
  // The list schedules of the four rounds are not made again.
  EXPECT_LT(problem.state->evaluations() - 200,
            whole.state->evaluations() - 100);
}

TEST(ImproveFirstTest, DoesNotRepeatTheSpreadsOfAnEarlierSearch) {
  MoveProblem earlier(DominatedPipeline(1));
  ImproveFirst done(*earlier.state);
  earlier.Run(&done, kEnough);
  MoveProblem later(DominatedPipeline(1));
  ImproveFirst move(*later.state);
  move.Inherit(done);
  EXPECT_TRUE(move.has_work());
  later.Run(&move, kEnough);
  EXPECT_FALSE(move.has_work());
  // It only improves its own first answer and runs the tabu search; each of at
  // least 40 spreads takes two list schedules or more.
  EXPECT_LT(later.state->evaluations(), earlier.state->evaluations() - 80);
}

TEST(ImproveFirstTest, DrawsFewerSpreadsOnLargeGraphsUnderALimit) {
  const auto evaluations = [](bool limited) {
    MoveProblem problem(LargePipeline(true));
    EXPECT_TRUE(problem.state->has_dominant());
    problem.space.is_limited = limited;
    ImproveFirst move(*problem.state);
    problem.Run(&move, kEnough);
    EXPECT_FALSE(move.has_work());
    return problem.state->evaluations();
  };
  // Each of 20 spreads not drawn takes a choice and two list schedules.
  EXPECT_LE(evaluations(true) + 60, evaluations(false));
}

TEST(ImproveFirstTest, OnLargeGraphsUnderALimitOnlyGoodAnswersArePolished) {
  const auto evaluations = [](bool limited, bool warm_start) {
    MoveProblem problem(LargePipeline(false));
    EXPECT_FALSE(problem.state->has_dominant());
    problem.space.is_limited = limited;
    problem.space.warm_start = warm_start;
    ImproveFirst move(*problem.state);
    problem.Run(&move, kEnough);
    EXPECT_FALSE(move.has_work());
    return problem.state->evaluations();
  };
  EXPECT_EQ(evaluations(true, false), 0);
  EXPECT_GT(evaluations(true, true), 100);
  EXPECT_GT(evaluations(false, false), 100);
}

}  // namespace
}  // namespace pipeloom::planner
