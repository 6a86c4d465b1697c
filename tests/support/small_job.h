// A small vision-language job and batches for it, in code: no files needed.
#ifndef PIPELOOM_TESTS_SUPPORT_SMALL_JOB_H_
#define PIPELOOM_TESTS_SUPPORT_SMALL_JOB_H_

#include <cstdint>

#include "ir/job/batch_metadata.h"
#include "ir/job/job_spec.h"

namespace pipeloom::testing {

// "encoder" (8 blocks of width 256, images of 224 px in patches of 14, merged
// 4 x 4 to 16 tokens) feeds "backbone" (embedding, 8 blocks of width 512, loss
// head) on 4 pipeline ranks of 1 GPU, 8 microbatches of 2048 tokens.
// Passes ValidateJobSpec.
JobSpec SmallVlmJob();

// The same with 8 experts, of which a token visits 2, in each block of the
// backbone, spread over 2 replicas. Passes ValidateJobSpec.
JobSpec SmallExpertJob();

// Random samples: up to `max_images` images and some text each; with
// max_images = 0 text only.
BatchMetadata RandomBatch(uint64_t seed, int32_t num_samples,
                          int32_t max_images);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SUPPORT_SMALL_JOB_H_
