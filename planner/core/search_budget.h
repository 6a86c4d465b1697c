// How long a search may run. Evaluations make a result reproducible and are
// what tests use; the deadline is for service, where the batch will not wait.
// A search stops at whichever comes first and keeps its best so far.
#ifndef PIPELOOM_PLANNER_CORE_SEARCH_BUDGET_H_
#define PIPELOOM_PLANNER_CORE_SEARCH_BUDGET_H_

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
  // The share of the time that is used up, 0 to 1 and beyond; for searches with
  // parts. Empty: not known; a part may then take all.
  std::function<double()> spent = {};
  // Asks the search to stop early; it returns its best so far.
  std::stop_token stop = {};
  int32_t threads = 1;

  // A part of the budget that ends when `share` of the whole is used.
  SearchBudget Until(double share) const {
    SearchBudget part = *this;
    if (max_evaluations < std::numeric_limits<int64_t>::max()) {
      part.max_evaluations =
          static_cast<int64_t>(share * static_cast<double>(max_evaluations));
    }
    if (spent) {
      part.expired = [used = spent, share] { return used() >= share; };
    }
    return part;
  }

  // The part from now on, when `made` evaluations are made, until `share` of
  // the whole is used: it counts evaluations from zero, and its own shares are
  // of the part.
  SearchBudget PartUntil(double share, int64_t made) const {
    SearchBudget part = Until(share);
    if (max_evaluations < std::numeric_limits<int64_t>::max()) {
      part.max_evaluations -= made;
    }
    if (spent) {
      part.spent = [used = spent, begin = spent(), share] {
        return share > begin ? (used() - begin) / (share - begin) : 1.0;
      };
    }
    return part;
  }

  bool Exhausted(int64_t evaluations) const {
    return evaluations >= max_evaluations || stop.stop_requested() ||
           (expired && expired());
  }
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_SEARCH_BUDGET_H_
