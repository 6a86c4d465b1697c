// The recomputation of a job whose trainer sets it at launch: the setting with
// which given steps are fastest.
#ifndef PIPELOOM_PLANNER_TRAINER_RECOMPUTE_H_
#define PIPELOOM_PLANNER_TRAINER_RECOMPUTE_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"

namespace pipeloom::planner {

// Returns the time of the steps with the setting; ResourceExhausted if one does
// not fit.
using TimeWith =
    std::function<absl::StatusOr<Duration>(const RecomputeSetting&)>;

// Returns the settings that are alike for all stages, the least recomputation
// first; the first is none.
std::vector<RecomputeSetting> CommonSettings(const TrainerLimits& trainer,
                                             const JobSpec& job,
                                             const Partition& partition);

// Returns the fastest of CommonSettings by `time`. With `time_long`, which may
// search longer, the best three are judged by it, and, if the trainer has a
// number of each stage's own, so is less for each stage in turn, the last
// first. `unlimited`: the time of no recomputation without memory
// limits; a setting that reaches it is the answer. Errors of `time`;
// ResourceExhausted if nothing fits.
absl::StatusOr<RecomputeSetting> ChooseRecompute(const TrainerLimits& trainer,
                                                 const JobSpec& job,
                                                 const Partition& partition,
                                                 Duration unlimited,
                                                 const TimeWith& time,
                                                 const TimeWith& time_long);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_RECOMPUTE_H_
