// How long a search may run. Evaluations make a result reproducible and are
// what tests use; the deadline is for service, where the batch will not wait.
// A search stops at whichever comes first and keeps its best so far.
#ifndef PIPELOOM_PLANNER_SEARCH_BUDGET_H_
#define PIPELOOM_PLANNER_SEARCH_BUDGET_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <stop_token>

namespace pipeloom::planner {

struct SearchBudget {
  // Schedules timed. With a deadline too, results depend on the machine.
  int64_t max_evaluations = std::numeric_limits<int64_t>::max();
  // Says that the time is over; asked between evaluations, from any thread.
  // The caller owns the clock. Empty: no deadline.
  std::function<bool()> expired = {};
  // Asks the search to stop early; it returns its best so far.
  std::stop_token stop = {};
  int32_t threads = 1;

  bool Exhausted(int64_t evaluations) const {
    return evaluations >= max_evaluations || stop.stop_requested() ||
           (expired && expired());
  }
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SEARCH_BUDGET_H_
