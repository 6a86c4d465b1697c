// Measured training runs, to compare the emulator with: CSV with a header
// (docs/validation.md describes every column and word).
//
//   framework,run,cluster,shape,layout,setup,microbatch,global_batch,sequence,
//   step_ms,peak_gib,split
//
// `shape`, `layout` and `setup` hold NAME=VALUE words separated by blanks.
// Errors are InvalidArgument "FILE:LINE: ..." with the word and what is right.
#ifndef PIPELOOM_FORMATS_PROFILE_MEASURED_RUNS_H_
#define PIPELOOM_FORMATS_PROFILE_MEASURED_RUNS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/profile/measured_run.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"

namespace pipeloom::formats {

// Parses at least one run; every number is in range, the model valid, the
// global batch a multiple of microbatch x dp.
absl::StatusOr<std::vector<MeasuredRun>> ParseMeasuredRuns(
    absl::string_view text, const std::string& file_name);

// Inserts `count` modules ahead of the loss head, each of which predicts one
// more token: a projection, the last layers that attend and that have a
// feed-forward part, and the loss head once more. Nothing without a loss head.
void AddPredictedTokens(int64_t count, ModuleSpec* backbone);

// Returns the run as a job on that cluster, which gets as many nodes as the run
// has. Replicas are neighbours, as in the frameworks that were measured.
JobSpec JobOf(const MeasuredRun& run, ClusterSpec cluster);

// Returns the sequences of a step, over all replicas.
BatchMetadata BatchOf(const MeasuredRun& run);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_MEASURED_RUNS_H_
