// Repeated passes over a batch file: every epoch has all of its samples, each
// time in another order.
#ifndef PIPELOOM_PARTITION_BATCHING_EPOCHS_H_
#define PIPELOOM_PARTITION_BATCHING_EPOCHS_H_

#include <cstdint>
#include <stop_token>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "partition/batching/batch_split.h"

namespace pipeloom::partition {

// Returns the samples of `batch`, `epochs` times, one epoch after another, each
// in an order of its own drawn from `seed`. More epochs begin with the same
// ones as fewer. O(epochs x samples).
BatchMetadata ShuffledEpochs(const BatchMetadata& batch, uint64_t seed,
                             int64_t epochs);

// Packs `num_steps` consecutive steps (see PackStep) from as many shuffled
// epochs as they need; only a step that would need more than 1,024 epochs or a
// million samples is short. `piece_of` refers to samples of `batch`. Returns
// the errors of PackStep, with the step, and Cancelled after a stop request.
// REQUIRES: num_steps >= 0.
absl::StatusOr<std::vector<PackedStep>> PackShuffledSteps(
    const JobSpec& job, const BatchMetadata& batch, uint64_t seed,
    int64_t num_steps, const std::stop_token& stop = {});

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_EPOCHS_H_
