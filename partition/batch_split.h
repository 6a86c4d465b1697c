// A stream of samples -> the microbatches of one step -> sub-microbatches.
#ifndef PIPELOOM_PARTITION_BATCH_SPLIT_H_
#define PIPELOOM_PARTITION_BATCH_SPLIT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "ir/batch_metadata.h"
#include "ir/job_spec.h"
#include "ir/microbatches.h"
#include "ir/partition.h"

namespace pipeloom::partition {

// The samples of one step, by replica and microbatch, before they are cut to
// sub-microbatches (which depends on the partition).
struct PackedStep {
  // packed[replica][microbatch] = samples; pieces of one long sample repeat
  // its id.
  std::vector<std::vector<std::vector<SampleId>>> packed;
  // The samples themselves; a sample longer than a microbatch is replaced by
  // pieces that fit, which are numbered after the last sample.
  BatchMetadata samples;
  // piece_of[s] = the sample of the input batch that `samples[s]` is or is
  // part of.
  IdVector<SampleId, SampleId> piece_of{};
  int64_t num_samples = 0;  // Consumed from the input batch.
  int64_t num_split_samples = 0;
};

// Takes samples from `batch` in order, beginning at `first_sample`, and fills
// training.microbatches microbatches for each of parallel.dp replicas: a
// sample joins the open microbatch unless that breaks its token, image or
// second limit. Replicas are filled in turn, microbatch by microbatch. When
// the samples run out, the step has the microbatches that there are (a short
// last step); at least one sample per replica is needed. InvalidArgument: the
// batch is empty or has no sample left. O(samples).
absl::StatusOr<PackedStep> PackStep(const JobSpec& job,
                                    const BatchMetadata& batch,
                                    int64_t first_sample);

// The sub-microbatches of one replica of a packed step: each module's
// instances of a microbatch, in order, in ceil(N / B) even slices, B from the
// partition (DIP section 4.1). A backbone with B = 0 takes the microbatch
// whole.
absl::StatusOr<Microbatches> SplitMicrobatches(const JobSpec& job,
                                               const PackedStep& step,
                                               int32_t replica,
                                               const Partition& partition);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCH_SPLIT_H_
