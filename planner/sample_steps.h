// Steps made of a sample of a job's batches, by which what is decided once a
// job is judged: its partition, layout and placement.
#ifndef PIPELOOM_PLANNER_SAMPLE_STEPS_H_
#define PIPELOOM_PLANNER_SAMPLE_STEPS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "emulator/stage_cost.h"
#include "ir/batch_metadata.h"
#include "ir/job_spec.h"
#include "partition/batch_split.h"

namespace pipeloom::planner {

// A whole step of all replicas; a sample that is too short for one is repeated.
absl::StatusOr<partition::PackedStep> PackFullStep(const JobSpec& job,
                                                   const BatchMetadata& sample);

// One replica's steps of the sample, at most `count`, evenly spread over how
// much work they are. InvalidArgument: there is none. Milliseconds.
absl::StatusOr<std::vector<partition::PackedStep>> SampleSteps(
    const emulator::StageCostModel& costs, const BatchMetadata& sample,
    int32_t count);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_SAMPLE_STEPS_H_
