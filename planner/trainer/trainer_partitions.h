// The partitions that are tried for a trainer.
#ifndef PIPELOOM_PLANNER_TRAINER_TRAINER_PARTITIONS_H_
#define PIPELOOM_PLANNER_TRAINER_TRAINER_PARTITIONS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"
#include "ir/plan/trainer.h"
#include "partition/placement/layer_chain.h"

namespace pipeloom::planner {

// Returns all different ones that the trainer and the job's rules accept; not
// empty. `units`: the chain of all layers, weighed by time. REQUIRES:
// CheckTrainerJob accepts the job. FailedPrecondition, or InvalidArgument for a
// rule of the job, says why there is none.
absl::StatusOr<std::vector<Partition>> TrainerPartitions(
    const JobSpec& job, const TrainerLimits& trainer,
    absl::Span<const partition::LayerUnit> units);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_TRAINER_TRAINER_PARTITIONS_H_
