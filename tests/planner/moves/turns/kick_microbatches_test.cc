#include "planner/moves/turns/kick_microbatches.h"

#include <gtest/gtest.h>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(KickMicrobatchesTest, StaysLegalNeverWorsensAndMostlyGains) {
  EXPECT_GE(CheckRoundsOf<KickMicrobatches>(20), 15);
}

TEST(KickMicrobatchesTest, NeverBeatsTheOptimum) {
  EXPECT_GE(CheckAgainstOptimum<KickMicrobatches>(60), 45);
}

TEST(KickMicrobatchesTest, HasWorkOnlyIfMicrobatchesDiffer) {
  const MoveProblem unequal(ScaledPipeline({1, 2, 3}));
  EXPECT_TRUE(KickMicrobatches(*unequal.state).has_work());
  const MoveProblem equal(ScaledPipeline({2, 2, 2}));
  EXPECT_FALSE(KickMicrobatches(*equal.state).has_work());
}

TEST(KickMicrobatchesTest, ForgetsItsSequenceAtARestart) {
  CheckForgetsAtRestart<KickMicrobatches>();
}

}  // namespace
}  // namespace pipeloom::planner
