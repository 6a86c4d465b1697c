#include "planner/moves/start/exchange_ends.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

// Makes the first two choices of the portfolio the bases.
void AddBases(MoveProblem* problem) {
  SearchState& state = *problem->state;
  state.BeginRound(2);
  std::vector<Candidate>& bases = state.choices().bases;
  for (int i = 0; i < 2; ++i) {
    const OrderChoice& choice = problem->portfolio[i];
    bases.push_back({.time = state.TryChoice(choice), .choice = choice});
  }
}

TEST(ExchangeEndsTest, ImprovesOneBaseATurnAndStaysLegal) {
  int gained = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem problem(UnequalPipeline(seed), seed);
    AddBases(&problem);
    const std::vector<Candidate> before = problem.state->choices().bases;
    ExchangeEnds move(*problem.state);
    ASSERT_TRUE(move.has_work());
    problem.Run(&move, 100'000);
    ASSERT_TRUE(move.has_work());
    const std::vector<Candidate>& bases = problem.state->choices().bases;
    EXPECT_LE(bases[0].time, before[0].time);
    gained += bases[0].time < before[0].time ? 1 : 0;
    EXPECT_EQ(bases[1].choice.order, before[1].choice.order);
    problem.Run(&move, 100'000);
    EXPECT_FALSE(move.has_work());
    EXPECT_LE(bases[0].time, bases[1].time);
    EXPECT_EQ(problem.state->TryChoice(bases[0].choice), bases[0].time);
    ExpectLegalBest(problem);
  }
  EXPECT_GE(gained, 5);
}

TEST(ExchangeEndsTest, TakesTheSameBaseAgainIfCutShort) {
  MoveProblem problem(UnequalPipeline(1));
  AddBases(&problem);
  ExchangeEnds move(*problem.state);
  const auto second = problem.state->choices().bases[1].choice.order;
  problem.Run(&move, 5);
  problem.Run(&move, 5);
  EXPECT_EQ(problem.state->choices().bases[1].choice.order, second);
  problem.Run(&move, 100'000);
  EXPECT_TRUE(move.has_work());
  problem.Run(&move, 100'000);
  EXPECT_FALSE(move.has_work());
}

TEST(ExchangeEndsTest, HasNoWorkIfOrderDoesNotMatterOrOnAnEarlierSearchsBases) {
  MoveProblem equal(ScaledPipeline({2, 2, 2, 2}));
  AddBases(&equal);
  EXPECT_FALSE(ExchangeEnds(*equal.state).has_work());
  MoveProblem two(ScaledPipeline({1, 2}));
  AddBases(&two);
  EXPECT_FALSE(ExchangeEnds(*two.state).has_work());

  // Nor on large graphs under a limit, where other moves gain more.
  MoveProblem large(LargePipeline(false));
  AddBases(&large);
  large.space.is_limited = false;
  EXPECT_TRUE(ExchangeEnds(*large.state).has_work());
  large.space.is_limited = true;
  EXPECT_FALSE(ExchangeEnds(*large.state).has_work());

  MoveProblem problem(UnequalPipeline(1));
  AddBases(&problem);
  ExchangeEnds done(*problem.state);
  while (done.has_work()) problem.Run(&done, 100'000);
  MoveProblem later(UnequalPipeline(1));
  AddBases(&later);
  ExchangeEnds move(*later.state);
  EXPECT_TRUE(move.has_work());
  move.Inherit(done);
  EXPECT_FALSE(move.has_work());
}

TEST(ExchangeEndsTest, PutsALightMicrobatchFirst) {
  // A heavy microbatch in front delays all other ranks.
  MoveProblem problem(ScaledPipeline({9, 1, 9, 9, 9}));
  SearchState& state = *problem.state;
  state.BeginRound(1);
  OrderChoice choice;
  for (int32_t u = 0; u < problem.units.num_units(); ++u) {
    choice.order.push_back(u);
  }
  state.choices().bases = {{.time = state.TryChoice(choice), .choice = choice}};
  ExchangeEnds move(state);
  problem.Run(&move, 100'000);
  const OrderChoice& best = state.choices().bases[0].choice;
  const int32_t front = problem.units.microbatch[best.order.front()];
  const int32_t back = problem.units.microbatch[best.order.back()];
  EXPECT_TRUE(front == 1 || back == 1) << "front " << front << " back " << back;
}

}  // namespace
}  // namespace pipeloom::planner
