// Steps made of a sample of a job's batches, by which what is decided once a
// job is judged: its partition, layout and placement.
#ifndef PIPELOOM_PLANNER_STEP_SAMPLE_STEPS_H_
#define PIPELOOM_PLANNER_STEP_SAMPLE_STEPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::planner {

// A whole step of all replicas; a sample that is too short for one is repeated.
absl::StatusOr<partition::PackedStep> PackFullStep(const JobSpec& job,
                                                   const BatchMetadata& sample);

// One replica's steps of the sample, at most `count`, evenly spread over how
// much work they are. InvalidArgument: there is none. Milliseconds.
absl::StatusOr<std::vector<partition::PackedStep>> SampleSteps(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count);

struct WeighedStep {
  partition::PackedStep step{};  // Of one replica, its first.
  Duration work{};               // All passes of all modules on one rank.
  // Activations of the microbatch that has most, whole, in one place.
  Bytes fullest{};
  int32_t weight = 1;  // Steps of the sample that it stands for.
};

// One replica's steps in the sample's order, up to 16. Where a sample has from
// 2 to 7, more of the same samples in other orders, drawn from a fixed seed:
// how heavy the heaviest steps are shows only among many. Errors and cost as
// SampleSteps.
absl::StatusOr<std::vector<WeighedStep>> StepPool(
    const emulator::StageCostModel& costs, const BatchMetadata& sample);

// At most `count` steps that stand for all of `pool`, whose weights are the
// numbers of steps they stand for. The heaviest stands for itself, from four on
// also the one with the fullest microbatch: memory is what few steps show. The
// others, by work, are cut into runs with the least sum of distances from their
// runs' mean work, and each has the step nearest to it. Runs with the most work
// in all go first, those that stand for themselves last. REQUIRES: count >= 1.
std::vector<WeighedStep> Stratify(std::vector<WeighedStep> pool, int32_t count);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_SAMPLE_STEPS_H_
