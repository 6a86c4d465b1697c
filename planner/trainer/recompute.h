// The recomputation of a job whose trainer sets it at launch: the least with
// which given steps fit.
#ifndef PIPELOOM_PLANNER_TRAINER_RECOMPUTE_H_
#define PIPELOOM_PLANNER_TRAINER_RECOMPUTE_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"

namespace pipeloom::planner {

// Returns OK if all steps fit with the setting, ResourceExhausted if one does
// not.
using Fits = std::function<absl::Status(const RecomputeSetting&)>;

// Returns the settings that are alike for all stages, the least recomputation
// first; the first is none.
std::vector<RecomputeSetting> CommonSettings(const TrainerLimits& trainer,
                                             const JobSpec& job,
                                             const Partition& partition);

// Returns the first of CommonSettings that fits; if the trainer has a number of
// each stage's own, less for each stage in turn, the last first, as long as it
// fits. Errors of `fits`; ResourceExhausted if nothing fits.
absl::StatusOr<RecomputeSetting> ChooseRecompute(const TrainerLimits& trainer,
                                                 const JobSpec& job,
                                                 const Partition& partition,
                                                 const Fits& fits);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_RECOMPUTE_H_
