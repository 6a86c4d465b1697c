// The limits of a search. Evaluations make a result reproducible and are what
// tests use; the deadline is for the service, where the batch does not wait. A
// search stops at whichever limit comes first and keeps its best answer so far.
#ifndef PIPELOOM_PLANNER_CORE_SEARCH_BUDGET_H_
#define PIPELOOM_PLANNER_CORE_SEARCH_BUDGET_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <stop_token>

#include "ir/job/job_spec.h"

namespace pipeloom::planner {

// The number of searchers of an order. Not more than two by default: with
// little time one long search beats several short ones.
inline constexpr int32_t kUsualWorkers = 2;
inline constexpr int32_t kMostWorkers = kMostSearchWorkers;

// The limits of one search, or of a part of it.
struct SearchBudget {
  // Number of schedules to time. With a deadline too, results depend on the
  // machine.
  int64_t max_evaluations = std::numeric_limits<int64_t>::max();
  // Returns whether the time is over; called between evaluations, from any
  // thread. The caller owns the clock. Empty: no deadline.
  std::function<bool()> expired = {};
  // Returns the share of the time that is used up, from 0 to 1 and beyond; for
  // searches with parts. Empty: unknown; a part may then take all the time.
  std::function<double()> spent = {};
  // Asks the search to stop early; it returns its best so far.
  std::stop_token stop = {};
  // Whether a stopped search still returns an answer. If not it returns
  // CancelledError soon, before its first answer too.
  bool needs_answer = true;
  int32_t threads = 1;
  // The number of searchers, in [1, kMostWorkers], which share the evaluations:
  // all search for one order, or each two for a plan
  // (planner/step/plan_step.h). Results depend on it, and on `threads` only
  // under a deadline.
  int32_t workers = kUsualWorkers;

  // Returns a part of the budget that ends when `share` of the whole is used.
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

  // Returns the part that begins now, after `made` evaluations, and ends when
  // `share` of the whole is used. It counts evaluations from zero, and its own
  // shares are shares of the part.
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

  // Returns whether any limit is reached.
  bool Exhausted(int64_t evaluations) const {
    return evaluations >= max_evaluations || stop.stop_requested() ||
           (expired && expired());
  }

  // Returns whether the search was stopped and its answer is not needed.
  bool Abandoned() const { return !needs_answer && stop.stop_requested(); }
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_SEARCH_BUDGET_H_
