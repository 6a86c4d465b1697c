// A batch file read more than once: every epoch has all of its samples, each
// time in another order.
#ifndef PIPELOOM_PARTITION_BATCHING_EPOCHS_H_
#define PIPELOOM_PARTITION_BATCHING_EPOCHS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {

// The samples of `batch`, `epochs` times, one epoch after another, each in an
// order of its own drawn from `seed`. More epochs go on where fewer end: the
// first are the same. O(epochs x samples).
BatchMetadata ShuffledEpochs(const BatchMetadata& batch, uint64_t seed,
                             int64_t epochs);

// `num_steps` steps packed one after another (see PackStep) from as many
// shuffled epochs as they need; only a step that would need more than 1,024
// epochs or a million samples is short. `piece_of` names samples of `batch`.
// REQUIRES: num_steps >= 0. Errors are PackStep's, with the step.
absl::StatusOr<std::vector<PackedStep>> PackShuffledSteps(
    const JobSpec& job, const BatchMetadata& batch, uint64_t seed,
    int64_t num_steps);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_EPOCHS_H_
