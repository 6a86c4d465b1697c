#include "planner/step/time_shares.h"

#include <gtest/gtest.h>

namespace pipeloom::planner {
namespace {

// A small step's plan is made in no time to speak of.
TEST(TimeSharesTest, SmallStepsAreSearchedAndRefinedNearlyToTheEnd) {
  const TimeShares small(0);
  EXPECT_GE(small.RefiningEnd(), 0.9);
  EXPECT_GE(small.PairedEnd(), 0.95);
  EXPECT_GE(small.LatestToRefine(0), 0.95);
  EXPECT_EQ(ChoiceOptions(0).rounds, ChooseMemoryOptions().rounds);
  EXPECT_EQ(ChoiceOptions(0).program.root_rounds,
            ChooseMemoryOptions().program.root_rounds);
}

// dip-vlm-l in 100 ms: a plan is lowered in 3 % of the time, and made and
// checked after a search with pairs in 13 %. Memory is chosen anew in 25 %,
// with a repair in 13 %.
TEST(TimeSharesTest, LargeStepsLeaveTimeForWhatComesAfter) {
  const TimeShares large(0.032);
  EXPECT_LE(large.PairedEnd() + 0.13, 1);
  EXPECT_LE(large.LatestToRefine(0.38) + 0.38 + 0.04, 1);
  EXPECT_LE(large.UnpairedEnd() + 0.38, 0.96);
  EXPECT_LT(ChoiceOptions(0.032).rounds, ChooseMemoryOptions().rounds);
  EXPECT_LT(ChoiceOptions(0.032).program.root_rounds,
            ChooseMemoryOptions().program.root_rounds);
}

TEST(TimeSharesTest, EveryPartEndsEarlierIfPlansTakeLonger) {
  for (double lowering = 0; lowering < 0.1; lowering += 0.01) {
    SCOPED_TRACE(lowering);
    const TimeShares shares(lowering);
    const TimeShares longer(lowering + 0.01);
    EXPECT_LT(longer.UnpairedEnd(), shares.UnpairedEnd());
    EXPECT_LT(longer.RefiningEnd(), shares.RefiningEnd());
    EXPECT_LT(longer.PairedEnd(), shares.PairedEnd());
    EXPECT_LT(longer.SearchedEnd(), shares.SearchedEnd());
    EXPECT_LE(longer.LatestToRefine(0.1), shares.LatestToRefine(0.1));
    EXPECT_GE(longer.LeastPaired(), shares.LeastPaired());
    EXPECT_LE(ChoiceOptions(lowering + 0.01).rounds,
              ChoiceOptions(lowering).rounds);
  }
}

}  // namespace
}  // namespace pipeloom::planner
