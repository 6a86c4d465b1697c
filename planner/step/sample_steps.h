// Steps made of a sample of a job's batches. Decisions that are made once a job
// (partition, layout and placement) are judged by them.
#ifndef PIPELOOM_PLANNER_STEP_SAMPLE_STEPS_H_
#define PIPELOOM_PLANNER_STEP_SAMPLE_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::planner {

// Returns the sample, repeated as often as one replica's step needs if it has
// fewer microbatches than that: a partition chosen for short steps suits no
// others. At most 4,096 times and to about two million samples.
// O(samples of a step).
BatchMetadata FullSample(const JobSpec& job, const BatchMetadata& sample);

// Packs a whole step of all replicas; a sample that is too short for one is
// repeated.
absl::StatusOr<partition::PackedStep> PackFullStep(const JobSpec& job,
                                                   const BatchMetadata& sample);

// Returns one replica's steps of the sample, at most `count`, evenly spread
// over how much work they are. Returns InvalidArgument if there is none. Takes
// milliseconds.
absl::StatusOr<std::vector<partition::PackedStep>> SampleSteps(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count);

// The number of steps to judge by, if they have 256 samples in all. Steps of
// few samples differ much; of such, more are taken, up to kMostSteps.
inline constexpr size_t kUsualSteps = 16;
inline constexpr size_t kMostSteps = 64;

// Returns whether so many steps, with so many samples in all, are enough to
// judge by.
bool AreEnough(size_t steps, int64_t samples);

// A step with the work and memory it takes.
struct WeighedStep {
  partition::PackedStep step{};  // Belongs to one replica, the first.
  Duration work{};  // Time of all passes of all modules on one rank.
  // Activations of the microbatch that has most, kept in full in one place.
  Bytes fullest{};
  int32_t weight = 1;  // Number of the sample's steps that it stands for.
};

// Returns one replica's steps in the sample's order, until there are `most` of
// them or they are enough. A sample that has from 2 to 7 is filled up with
// steps of the same samples in other orders, drawn from a fixed seed, since
// only many steps show how heavy the heaviest are. Errors and cost are those of
// SampleSteps.
absl::StatusOr<std::vector<WeighedStep>> StepPool(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    size_t most = kUsualSteps);

// Returns at most `count` steps that stand for all of `pool`, each with the
// number of steps it stands for as its weight. With two or more, the heaviest
// stands for itself; with four or more, so does the one with the fullest
// microbatch, as few steps show the need for memory. The others, sorted by
// work, are cut into runs with the least sum of distances from their runs' mean
// work, and each run is represented by the step nearest to its mean. Runs with
// the most total work go first, steps that stand for themselves last. REQUIRES:
// count >= 1.
std::vector<WeighedStep> Stratify(std::vector<WeighedStep> pool, int32_t count);

// How much shorter steps get, in seconds.
struct MeanGain {
  double mean = 0;   // Weighted.
  double error = 0;  // Standard error of the mean; 0 for fewer than two steps.
  int32_t steps = 0;
};

// Compares two times of each step. Steps for which one of them is 0, as they do
// not fit, do not count, nor do those after the end of the shorter list.
MeanGain GainOf(const std::vector<WeighedStep>& steps,
                const std::vector<Duration>& before,
                const std::vector<Duration>& after);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STEP_SAMPLE_STEPS_H_
