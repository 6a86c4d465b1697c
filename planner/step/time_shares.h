// The shares of a step's time at which the parts of its search end under a
// deadline, so that its plan is checked in time. What comes after a search
// takes a multiple of the time in which one plan is lowered and emulated (on
// two cores: 0.9 ms at 2,400 tasks, 3 ms at 6,000).
//
// The constants were chosen on 50 steps each of dip-vlm-s, dip-vlm-m, dip-vlm-l
// and qwen2.5-vl-72b in 100 ms (scripts/measure_jobs.py), with the part of the
// time that each part took in view.
#ifndef PIPELOOM_PLANNER_STEP_TIME_SHARES_H_
#define PIPELOOM_PLANNER_STEP_TIME_SHARES_H_

#include <algorithm>
#include <cstdint>

#include "planner/memory/choose_memory.h"

namespace pipeloom::planner {

// Until when passes are refined: the bound and the checks of the plan come
// after it.
inline constexpr double kRefineUntil = 0.93;

// Ends of the parts, as shares of the time. Immutable.
class TimeShares {
 public:
  // Takes Candidate::lowering of the first plan.
  explicit TimeShares(double lowering) : lowering_(lowering) {}

  // Returns until when orders are searched without pairs first.
  double UnpairedEnd() const { return kUnpairedUntil - Lowerings(); }
  // Returns until when forms and pairs of passes are looked for.
  double RefiningEnd() const { return kRefineUntil - Lowerings(); }
  // Returns when refining must begin that takes `refining`.
  double LatestToRefine(double refining) const {
    return std::min(kRefinedAt, kEnd - kFinishing * lowering_) - refining;
  }
  // Returns until when orders may be searched with pairs: what is found is made
  // a plan.
  double PairedEnd() const { return kEnd - (kMaking + kFinishing) * lowering_; }
  // Returns the least share for which it is worth to begin such a search.
  double LeastPaired() const {
    return std::max(kLeastSearch, kBeginning * lowering_);
  }

  // Returns until when the order is searched whose passes are refined once, in
  // the end: the search of a strategy that does not start from others. What is
  // left is enough for refining as far as one plan tells how long it takes.
  double SearchedEnd() const {
    return std::max(UnpairedEnd(), kRefineUntil - kRefining * lowering_);
  }

  // UnpairedEnd() of a small step.
  static constexpr double kUnpairedUntil = 0.6;
  // The least share for which it is worth to search otherwise.
  static constexpr double kLeastSearch = 0.02;

 private:
  // The first search and refining end earlier by the time to lower a plan so
  // often: memory is chosen anew twice, each time with a plan.
  static constexpr double kMostLowerings = 6;
  // Times to lower a plan that are left for refining. Assumed: of dip-vlm-s and
  // dip-vlm-l in 100 ms, `dip` ends after 91 and 102 ms with it.
  static constexpr double kRefining = 20;
  // Times to lower a plan that it takes to begin a search with pairs, to
  // make its answer a plan, and to check the plan in the end.
  static constexpr double kBeginning = 1.5;
  static constexpr double kMaking = 2.7;
  static constexpr double kFinishing = 1.4;

  static constexpr double kRefinedAt = 0.97;
  static constexpr double kEnd = 0.99;

  double Lowerings() const { return kMostLowerings * lowering_; }

  double lowering_;
};

// Where lowering a plan takes a larger share of the time than this, memory for
// refined passes is chosen in so many rounds only, and its programs get so many
// rounds of prices. Of the rounds of prices, 40, 10 and 4 were compared on
// steps of dip-vlm-l (docs/evaluation/search_parts.md).
inline constexpr double kLongLowering = 0.015;
inline constexpr int32_t kFewRounds = 2;
inline constexpr int32_t kFewPriceRounds = 10;

// Returns how it is chosen.
inline ChooseMemoryOptions ChoiceOptions(double lowering) {
  ChooseMemoryOptions options;
  if (lowering > kLongLowering) {
    options.rounds = kFewRounds;
    options.program.root_rounds = kFewPriceRounds;
  }
  return options;
}

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_TIME_SHARES_H_
