#include "planner/moves/turns/improve_best.h"

#include <gtest/gtest.h>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(ImproveBestTest, StaysLegalNeverWorsensAndMostlyGains) {
  EXPECT_GE(CheckRoundsOf<ImproveBest>(20), 15);
}

TEST(ImproveBestTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<ImproveBest>(60), 50);
}

TEST(ImproveBestTest, ReturnsIfNothingCanBeMoved) {
  // One rank with one microbatch: every task waits for the one before.
  MoveProblem problem(testing::UniformGraph({.ranks = 1, .microbatches = 1}));
  ImproveBest move(*problem.state);
  problem.Run(&move, 1'000'000);
  EXPECT_LT(problem.state->evaluations(), SearchState::kSteps);
  EXPECT_EQ(problem.state->overall().time, problem.first);
}

TEST(ImproveBestTest, DoesNothingAtTheBound) {
  MoveProblem problem(UnequalPipeline(1));
  problem.space.bound = problem.first;
  ImproveBest move(*problem.state);
  problem.Run(&move, 1000);
  EXPECT_EQ(problem.state->evaluations(), 0);
}

}  // namespace
}  // namespace pipeloom::planner
