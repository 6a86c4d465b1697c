#include "planner/moves/start/try_portfolio.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

void RunToTheEnd(MoveProblem* problem, TryPortfolio* move) {
  for (int turns = 0; move->has_work(); ++turns) {
    ASSERT_LT(turns, 1000);
    problem->Run(move, 1000);
  }
}

TEST(TryPortfolioTest, WorkersShareThePortfolio) {
  int64_t tried = 0;
  for (const int32_t worker : {0, 1}) {
    MoveProblem problem(UnequalPipeline(2), 1, worker);
    // Nothing is better, so nothing but choices is tried.
    const std::vector<int32_t> sequence = problem.state->overall().sequence;
    ASSERT_TRUE(problem.state->Adopt(1, sequence));
    TryPortfolio move(*problem.state);
    RunToTheEnd(&problem, &move);
    tried += problem.state->evaluations();
    EXPECT_EQ(tried, worker == 0 ? (problem.portfolio.size() + 1) / 2
                                 : problem.portfolio.size());
  }
}

TEST(TryPortfolioTest, LeavesTheBestChoicesBestFirstAndPatternsAsHome) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (const int32_t worker : {0, 1}) {
      MoveProblem problem(UnequalPipeline(seed), seed, worker);
      TryPortfolio move(*problem.state);
      RunToTheEnd(&problem, &move);
      const GoodChoices& good = problem.state->choices();
      ASSERT_EQ(good.bases.size(), 2);
      EXPECT_LE(good.bases[0].time, good.bases[1].time);
      EXPECT_LE(problem.state->overall().time, good.bases[0].time);
      for (const Candidate& base : good.bases) {
        EXPECT_NE(base.choice.rule, PriorityRule::kTail);
        EXPECT_EQ(problem.state->TryChoice(base.choice), base.time);
      }
      // Only every second worker comes back to patterns.
      EXPECT_EQ(good.home.choice.order.empty(), worker == 0);
      EXPECT_TRUE(worker == 0 || IsPattern(good.home.choice.rule));
    }
  }
}

TEST(TryPortfolioTest, NeverBeatsTheOptimum) {
  EXPECT_GE(CheckAgainstOptimum<TryPortfolio>(60), 40);
}

TEST(TryPortfolioTest, TriesOnlyTheBestChoicesOfAnEarlierSearch) {
  MoveProblem earlier(UnequalPipeline(2), 1, 1);
  TryPortfolio done(*earlier.state);
  RunToTheEnd(&earlier, &done);
  MoveProblem later(UnequalPipeline(2), 1, 1);
  TryPortfolio move(*later.state);
  move.Inherit(done);
  RunToTheEnd(&later, &move);
  // Two bases and a home, and relisting the best.
  EXPECT_GE(later.state->evaluations(), 3);
  EXPECT_LE(later.state->evaluations(), 3 + 27);
  EXPECT_EQ(later.state->choices().bases[0].time,
            earlier.state->choices().bases[0].time);
}

TEST(TryPortfolioTest, ImprovesTheFirstChoicesTogetherOnLargeLimitedGraphs) {
  for (const bool limited : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "limited " << limited);
    MoveProblem problem(LargePipeline(false));
    problem.space.is_limited = limited;
    TryPortfolio move(*problem.state);
    const int64_t before = problem.state->since_start().time;
    problem.Run(&move, 10'000);
    ASSERT_LT(problem.state->since_start().time, before);
    const int64_t first_turn = problem.state->evaluations();
    // Eight choices a turn, and more for improving the best of them.
    if (!limited) {
      EXPECT_GT(first_turn, 8);
      continue;
    }
    EXPECT_EQ(first_turn, 8);
    problem.Run(&move, 10'000);
    EXPECT_GT(problem.state->evaluations(), 16);
  }
}

}  // namespace
}  // namespace pipeloom::planner
