// Random models, jobs and batches of every kind the partition folder handles.
#ifndef PIPELOOM_TESTS_PARTITION_RANDOM_JOB_H_
#define PIPELOOM_TESTS_PARTITION_RANDOM_JOB_H_

#include <cstdint>

#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::testing {

// Up to two encoders, perhaps a projector module of one layer, a backbone and
// perhaps a generator, of 1 to 12 blocks each; 1 to 6 ranks, 1 to 3 replicas,
// some modules frozen. Passes ValidateJobSpec. The same seed gives the same
// job.
JobSpec RandomJob(uint64_t seed);

// Samples with text, images, clips and audio; some have nothing, some are
// longer than any microbatch.
BatchMetadata RandomMixedBatch(uint64_t seed, int32_t num_samples);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PARTITION_RANDOM_JOB_H_
