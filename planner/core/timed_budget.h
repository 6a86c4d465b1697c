// Budgets that end by the steady clock, for callers that have no clock of their
// own.
#ifndef PIPELOOM_PLANNER_CORE_TIMED_BUDGET_H_
#define PIPELOOM_PLANNER_CORE_TIMED_BUDGET_H_

#include <algorithm>
#include <chrono>

#include "planner/core/search_budget.h"

namespace pipeloom::planner {

// Ends `budget` when `time` is over that counts from `begin`. With no time or
// less, all of it is used up 1 ns after `begin`.
inline void EndAfter(std::chrono::steady_clock::time_point begin,
                     std::chrono::nanoseconds time, SearchBudget* budget) {
  using Clock = std::chrono::steady_clock;
  time = std::max(time, std::chrono::nanoseconds(1));
  budget->expired = [begin, time] { return Clock::now() - begin >= time; };
  budget->spent = [begin, time] {
    using Seconds = std::chrono::duration<double>;
    return Seconds(Clock::now() - begin) / Seconds(time);
  };
}

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_TIMED_BUDGET_H_
