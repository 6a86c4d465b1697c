#include "planner/moves/turns/anneal_sequence.h"

#include <gtest/gtest.h>

#include <vector>

#include "planner/moves/turns/improve_best.h"
#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(AnnealSequenceTest, StaysLegalNeverWorsensAndMostlyGains) {
  EXPECT_GE(CheckRoundsOf<AnnealSequence>(20), 12);
}

TEST(AnnealSequenceTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<AnnealSequence>(60), 45);
}

TEST(AnnealSequenceTest, BeginsAtAnAdoptedAnswer) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    MoveProblem better(UnequalPipeline(seed), seed);
    ImproveBest improve(*better.state);
    better.Run(&improve, 400);
    for (const bool told : {false, true}) {
      MoveProblem problem(UnequalPipeline(seed), seed);
      SearchState& state = *problem.state;
      AnnealSequence move(state);
      problem.Run(&move, 10);
      ASSERT_TRUE(state.Adopt(better.state->overall().time,
                              better.state->overall().sequence));
      if (told) move.OnAdopt();
      problem.Run(&move, 1);
      // Without a best answer, the state keeps that of the move's sequence.
      state.LeaveBest();
      problem.Run(&move, 1);
      EXPECT_EQ(state.since_start().time <= better.state->overall().time, told);
    }
  }
}

}  // namespace
}  // namespace pipeloom::planner
