#include "planner/moves/turns/perturb_choices.h"

#include <gtest/gtest.h>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

// Makes the first choice of the portfolio the only base.
void AddBase(MoveProblem* problem) {
  SearchState& state = *problem->state;
  state.BeginRound(1);
  const OrderChoice& choice = problem->portfolio.front();
  const int64_t time = state.TryChoice(choice);
  state.choices().bases = {{.time = time, .choice = choice}};
}

TEST(PerturbChoicesTest, StaysLegalNeverWorsensAndMostlyGains) {
  EXPECT_GE(CheckRoundsOf<PerturbChoices>(20, AddBase), 15);
}

TEST(PerturbChoicesTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<PerturbChoices>(60, AddBase), 50);
}

TEST(PerturbChoicesTest, HasNoWorkWithoutAChoice) {
  MoveProblem problem(UnequalPipeline(1));
  PerturbChoices move(*problem.state);
  EXPECT_FALSE(move.has_work());
  problem.Run(&move, 100);
  EXPECT_EQ(problem.state->evaluations(), 0);
  AddBase(&problem);
  EXPECT_TRUE(move.has_work());
}

TEST(PerturbChoicesTest, LeavesABetterHomeWithItsTrueTime) {
  int better = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem problem(UnequalPipeline(seed), seed);
    AddBase(&problem);
    PerturbChoices move(*problem.state);
    for (int round = 0; round < 5; ++round) problem.Run(&move, 400);
    const Candidate& home = problem.state->choices().home;
    const int64_t base = problem.state->choices().bases.front().time;
    EXPECT_LE(home.time, base);
    better += home.time < base ? 1 : 0;
    EXPECT_EQ(problem.state->TryChoice(home.choice), home.time);
  }
  EXPECT_GE(better, 5);
}

}  // namespace
}  // namespace pipeloom::planner
