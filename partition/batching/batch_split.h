// A stream of samples -> the microbatches of one step -> sub-microbatches.
#ifndef PIPELOOM_PARTITION_BATCHING_BATCH_SPLIT_H_
#define PIPELOOM_PARTITION_BATCHING_BATCH_SPLIT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"

namespace pipeloom::partition {

// The samples of one step, by replica and microbatch, before the microbatches
// are cut into sub-microbatches (which depends on the partition).
struct PackedStep {
  // packed[replica][microbatch] = samples, as ids into `samples`.
  std::vector<std::vector<std::vector<SampleId>>> packed{};
  // The step's samples in the order of the input, beginning at first_sample,
  // then the pieces of those that were longer than a microbatch. A sample that
  // was cut is in no microbatch itself.
  BatchMetadata samples{};
  // piece_of[s] = the sample of the input batch that `samples[s]` is or is part
  // of.
  IdVector<SampleId, SampleId> piece_of{};
  // The work of a module, over all replicas.
  struct Total {
    int64_t tokens = 0;
    int64_t instances = 0;
  };
  IdVector<ModuleId, Total> totals{};
  int64_t num_samples = 0;  // Consumed from the input batch.
  // Samples longer than a microbatch: cut into pieces, or alone in a microbatch
  // because there was nothing to cut.
  int64_t num_split_samples = 0;
};

// Takes samples from `batch` in order, beginning at `first_sample`, and fills
// training.microbatches microbatches for each of parallel.dp replicas: a sample
// joins the open microbatch unless that breaks its token, image or second
// limit. Replicas are filled in turn: microbatch 0 of each, then microbatch 1
// of each. If the samples run out, the step is short, with at least one
// microbatch per replica, and as many in each if they meet within passes
// (emulator/cluster/meeting_replicas.h) and have samples enough.
//
// Tokens are those of the backbones, or without a backbone those of the last
// module; images are images and clips; seconds are those of clips (as far as
// the model looks at them) and audio. A sample beyond a limit is cut into
// pieces: its text is divided evenly over its images, clips and recordings, and
// each piece takes as many of those in order as fit. One item beyond a limit
// stays whole and gets a microbatch of its own. A sample that needs more
// microbatches than the step has left begins the next step; but if a replica
// has none yet, the step grows. Samples without work for any module are
// skipped.
//
// InvalidArgument: the batch is empty or has no sample left from
// `first_sample`, there are fewer samples (with work) than replicas, or one
// sample has more than 100,000 pieces. O(samples consumed).
absl::StatusOr<PackedStep> PackStep(const JobSpec& job,
                                    const BatchMetadata& batch,
                                    int64_t first_sample);

// Returns whether a sample of the step is in more pieces than PackStep would
// cut it into for the job `than`. Pieces of a sample do not attend to one
// another, so steps that differ in this are steps of different trainings.
bool CutsMore(const PackedStep& step, const JobSpec& than);

// Returns the sub-microbatches of one replica of a packed step: the instances
// of each module in a microbatch, in order, in ceil(N / B) even slices, with B
// from the partition (DIP section 4.1), padded as training.shape_buckets say
// (partition/batching/shape_buckets.h). B = 0: one slice. A module in whose
// passes replicas meet (emulator/cluster/meeting_replicas.h) has in each of
// them as many slices as in the one that needs fewest. InvalidArgument: no such
// replica, or a partition of another model. O(instances), of all replicas that
// meet.
absl::StatusOr<Microbatches> SplitMicrobatches(const JobSpec& job,
                                               const PackedStep& step,
                                               int32_t replica,
                                               const Partition& partition);

// Returns the same without padding to training.shape_buckets: the shapes of the
// data, of whole microbatches too.
absl::StatusOr<Microbatches> SplitUnpadded(const JobSpec& job,
                                           const PackedStep& step,
                                           int32_t replica,
                                           const Partition& partition);

// Returns an upper bound of the tasks of a replica's plan: those with all
// backwards split.
int64_t MostTasks(const Microbatches& microbatches, const Partition& partition);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BATCHING_BATCH_SPLIT_H_
