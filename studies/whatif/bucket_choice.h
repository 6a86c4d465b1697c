// Shapes for CUDA graphs: the buckets that a what-if question tries.
#ifndef PIPELOOM_STUDIES_WHATIF_BUCKET_CHOICE_H_
#define PIPELOOM_STUDIES_WHATIF_BUCKET_CHOICE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "formats/job/job_overrides.h"
#include "studies/job/study_context.h"
#include "studies/whatif/whatif_case.h"
#include "studies/whatif/whatif_run.h"

namespace pipeloom::studies {

// Returns values of training.shape_buckets with at most 1, 2, 4, 8 and 16
// shapes a module, each with the least padding (partition::ChooseShapeBuckets).
// They are chosen on 16 steps that are drawn from the batch, not on the steps
// that will be planned, with the partition of the job after the changes `base`.
// If more shapes give the same value, it is there once. Errors: those of
// packing and of the partition.
absl::StatusOr<std::vector<BucketChoice>> BucketChoices(
    const WhatIfInput& input, const std::vector<formats::JobOverride>& base,
    const StudyContext& context);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_WHATIF_BUCKET_CHOICE_H_
