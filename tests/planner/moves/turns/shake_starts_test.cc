#include "planner/moves/turns/shake_starts.h"

#include <gtest/gtest.h>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(ShakeStartsTest, StaysLegalNeverWorsensAndMostlyGains) {
  EXPECT_GE(CheckRoundsOf<ShakeStarts>(20), 15);
}

TEST(ShakeStartsTest, NeverBeatsTheOptimumAndMostlyMeetsIt) {
  EXPECT_GE(CheckAgainstOptimum<ShakeStarts>(60), 50);
}

TEST(ShakeStartsTest, ForgetsItsSequenceAtARestart) {
  CheckForgetsAtRestart<ShakeStarts>();
}

}  // namespace
}  // namespace pipeloom::planner
