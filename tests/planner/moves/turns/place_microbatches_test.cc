#include "planner/moves/turns/place_microbatches.h"

#include <gtest/gtest.h>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(PlaceMicrobatchesTest, StaysLegalNeverWorsensAndMostlyGains) {
  EXPECT_GE(CheckRoundsOf<PlaceMicrobatches>(20), 15);
}

TEST(PlaceMicrobatchesTest, NeverBeatsTheOptimum) {
  EXPECT_GE(CheckAgainstOptimum<PlaceMicrobatches>(60), 45);
}

TEST(PlaceMicrobatchesTest, HasWorkOnlyIfMicrobatchesDiffer) {
  const MoveProblem unequal(ScaledPipeline({1, 2, 3}));
  EXPECT_TRUE(PlaceMicrobatches(*unequal.state).has_work());
  const MoveProblem equal(ScaledPipeline({2, 2, 2}));
  EXPECT_FALSE(PlaceMicrobatches(*equal.state).has_work());
}

}  // namespace
}  // namespace pipeloom::planner
