#include "planner/moves/search_state.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(SearchStateTest, KeepsOnlyWhatIsBetter) {
  MoveProblem problem(UnequalPipeline(1));
  SearchState& state = *problem.state;
  const std::vector<int32_t> first = state.overall().sequence;
  std::vector<int32_t> other = first;
  std::swap(other.front(), other.back());
  state.Keep(problem.first, other);
  EXPECT_EQ(state.overall().sequence, first);
  EXPECT_FALSE(state.Adopt(problem.first, other));
  state.Keep(problem.first - 1, other);
  EXPECT_EQ(state.overall().sequence, other);
  EXPECT_TRUE(state.Adopt(problem.first - 2, first));
  EXPECT_EQ(state.overall().time, problem.first - 2);
  EXPECT_EQ(state.overall().sequence, first);
}

TEST(SearchStateTest, AfterLeavingTheBestAdoptedAnswersAreOnlyKept) {
  MoveProblem problem(UnequalPipeline(1));
  SearchState& state = *problem.state;
  const std::vector<int32_t> sequence = state.overall().sequence;
  state.LeaveBest();
  EXPECT_EQ(state.overall().time, problem.first);
  EXPECT_EQ(state.overall().sequence, sequence);
  EXPECT_EQ(state.since_start().time, std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(state.Adopt(problem.first - 1, sequence));
  EXPECT_EQ(state.overall().time, problem.first - 1);
  EXPECT_EQ(state.since_start().time, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(state.elites().size(), 2);
}

TEST(SearchStateTest, KeepsTheEightBestAnswersOfStarts) {
  MoveProblem problem(UnequalPipeline(1));
  SearchState& state = *problem.state;
  const std::vector<int32_t> sequence = state.overall().sequence;
  for (int64_t time = 20; time > 0; --time) {
    state.LeaveBest();
    state.Keep(time, sequence);
  }
  // An equal answer is not kept twice.
  state.LeaveBest();
  state.Keep(1, sequence);
  state.LeaveBest();
  ASSERT_EQ(state.elites().size(), 8);
  for (const Answer& elite : state.elites()) EXPECT_LE(elite.time, 8);
}

TEST(SearchStateTest, RelistingTheBestIsLegalAndMostlyGains) {
  int gained = 0;
  int limited = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem problem(UnequalPipeline(seed), seed);
    SearchState& state = *problem.state;
    limited += state.is_limited() ? 1 : 0;
    state.BeginRound(100);
    state.RelistBest({});
    EXPECT_LE(state.overall().time, problem.first);
    EXPECT_GE(state.evaluations(), 9);
    EXPECT_LE(state.evaluations(), 27);
    gained += state.overall().time < problem.first ? 1 : 0;
    ExpectLegalBest(problem);
  }
  EXPECT_GT(limited, 0);
  EXPECT_GE(gained, 10);
}

TEST(SearchStateTest, RelistedReturnsWhatRelistTimed) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem problem(UnequalPipeline(seed), seed);
    SearchState& state = *problem.state;
    Retimer retimer(problem.flat);
    state.BeginRound(100);
    const std::vector<int32_t> first = state.overall().sequence;
    for (int i = 0; i < 5; ++i) {
      const int64_t time =
          state.Relist(first, state.DrawStyle(), Prefer::kPriority, {});
      ASSERT_LT(time, kNoLimit);
      EXPECT_EQ(retimer.Retime(state.relisted()), time);
      EXPECT_LE(state.overall().time, time);
    }
  }
}

TEST(SearchStateTest, RelistMakesOnlyOneScheduleWhenTheTimeIsOver) {
  MoveProblem problem(UnequalPipeline(1), 1);
  SearchState& state = *problem.state;
  state.BeginRound(100);
  const std::vector<int32_t> first = state.overall().sequence;
  const int64_t before = state.evaluations();
  const SearchBudget over{.expired = [] { return true; }};
  EXPECT_LT(state.Relist(first, {}, Prefer::kPriority, over), kNoLimit);
  EXPECT_EQ(state.evaluations(), before + 1);
  EXPECT_LT(state.Relist(first, {}, Prefer::kPriority, {}), kNoLimit);
  EXPECT_GT(state.evaluations(), before + 2);
}

TEST(SearchStateTest, ARoundEndsWithItsCostItsEvaluationsOrTheBound) {
  MoveProblem problem(UnequalPipeline(1));
  SearchState& state = *problem.state;
  state.BeginRound(10);
  EXPECT_TRUE(state.RoundMayGoOn({}));
  state.Spend(1, SearchState::kRoundCost);
  EXPECT_FALSE(state.RoundMayGoOn({}));
  EXPECT_TRUE(state.MayGoOn({}));
  state.Spend(9, 0);
  EXPECT_FALSE(state.MayGoOn({}));
  state.BeginRound(std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(state.RoundMayGoOn({}));
  problem.space.bound = problem.first;
  EXPECT_FALSE(state.MayGoOn({}));
}

}  // namespace
}  // namespace pipeloom::planner
