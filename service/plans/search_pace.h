// How much of the search time that a job asks for its searches get. A trainer
// that goes on without the plan of a step has shown that plans come too late,
// as more is searched than there are threads for. Then searches take half as
// long, and with every step in time a little longer again, so that most steps
// get a plan in time.
#ifndef PIPELOOM_SERVICE_PLANS_SEARCH_PACE_H_
#define PIPELOOM_SERVICE_PLANS_SEARCH_PACE_H_

#include <algorithm>
#include <cstdint>

namespace pipeloom::service {

// A plain value without locks.
class SearchPace {
 public:
  // Notes that a call for the plan of a submitted step left before there was
  // one. `newest`: the newest step that was submitted. Steps that were
  // submitted before the last time count for nothing, as their searches had
  // begun. Returns whether searches take less time from now on.
  bool Late(int64_t step, int64_t newest) {
    if (step <= ignored_ || part_ <= kLeast) return false;
    ignored_ = newest;
    part_ = std::max(part_ / 2, kLeast);
    return true;
  }
  // Notes that the plan of a step was handed out; once a step.
  void InTime(int64_t step) {
    if (step <= in_time_) return;
    in_time_ = step;
    part_ = std::min(part_ + kGain, 1.0);
  }
  // Steps are counted anew.
  void BeginAttempt() { ignored_ = in_time_ = -1; }

  // The share of its time that a search may take; in (0, 1]; 1: all.
  double part() const { return part_; }

 private:
  static constexpr double kLeast = 1.0 / 64;
  static constexpr double kGain = 0.02;

  double part_ = 1;
  int64_t ignored_ = -1;
  int64_t in_time_ = -1;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_PLANS_SEARCH_PACE_H_
