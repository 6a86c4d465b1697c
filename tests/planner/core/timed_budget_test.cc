#include "planner/core/timed_budget.h"

#include <gtest/gtest.h>

#include <chrono>

namespace pipeloom::planner {
namespace {

using Clock = std::chrono::steady_clock;

TEST(TimedBudgetTest, SharesCountFromTheBegin) {
  SearchBudget budget;
  EndAfter(Clock::now() - std::chrono::minutes(30), std::chrono::hours(1),
           &budget);
  EXPECT_FALSE(budget.expired());
  EXPECT_GE(budget.spent(), 0.5);
  EXPECT_LT(budget.spent(), 0.6);
  EXPECT_TRUE(budget.Until(0.4).expired());
  EXPECT_FALSE(budget.Until(0.9).expired());
}

// Also where the end was before the begin, in every part of the budget.
TEST(TimedBudgetTest, WithoutTimeAllOfItIsUsedUp) {
  for (const std::chrono::nanoseconds time :
       {std::chrono::nanoseconds(0), std::chrono::nanoseconds(-5'000'000'000),
        std::chrono::nanoseconds::min()}) {
    SearchBudget budget;
    EndAfter(Clock::now() - std::chrono::milliseconds(1), time, &budget);
    EXPECT_TRUE(budget.expired());
    EXPECT_GE(budget.spent(), 1);
    EXPECT_TRUE(budget.PartUntil(0.5, 0).expired());
    EXPECT_TRUE(budget.PartUntil(0.5, 0).PartUntil(1, 0).expired());
  }
}

}  // namespace
}  // namespace pipeloom::planner
