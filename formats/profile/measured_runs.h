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

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"
#include "ir/operator_group.h"

namespace pipeloom::formats {

// Whether a run may be used to fit its framework's scalar.
enum class RunSplit {
  kByHash,  // Decided by the hash of its configuration.
  kFit,
  kHeldOut,
};

// The scalar that is fitted for a framework.
enum class FittedScalar {
  kStretch,  // Factor on everything that the GPU does.
  kHost,     // Microseconds to launch a kernel.
};

// One row of the table.
struct MeasuredRun {
  int32_t line = 0;
  std::string framework{};
  std::string name{};
  // Shipped name, or a path relative to the CSV's folder.
  std::string cluster{};
  // Empty, if `model_name` is not: a shipped model, which the caller loads.
  ModelSpec model{};
  std::string model_name{};
  // Images of a sample, in addition to its text, and their size.
  int32_t images = 0;
  ImageSize image{};
  int32_t videos = 0;  // Clips of a sample, and their size.
  VideoClip video{};
  std::vector<std::string> frozen_modules{};
  ParallelLayout parallel{};
  // Transformer layers of the backbone by stage, if they were given; other
  // modules are in the first stage.
  std::vector<int32_t> stage_layers{};
  int32_t chunks = 1;  // Model chunks per rank (virtual pipeline).
  TrainingSetup setup{};
  OptimizerSharding sharding = OptimizerSharding::kZero1;
  bool recompute = false;  // Transformer layers, one by one.
  // The number that is recomputed, the first of each rank; 0: all.
  int32_t recomputed_layers = 0;
  // Or these operator groups of every layer.
  OperatorGroups recompute_groups{};
  // Whether the step has no update of the weights, as fp16 gradients overflow.
  bool skips_optimizer = false;
  FittedScalar scalar = FittedScalar::kStretch;
  // Name of the strategy; empty: 1F1B, interleaved if there are chunks.
  std::string schedule{};
  // Whether transfers of two ranks in both directions share one queue, as sends
  // and receives do that are not batched.
  bool links_both_ways = false;
  // Transfers in both directions between this rank and the next take `delay`
  // longer than planned; none: no link does.
  RankId delayed_link{};
  Duration delay{};
  int64_t microbatch = 0;    // Sequences.
  int64_t global_batch = 0;  // Sequences.
  int64_t sequence = 0;      // Tokens; of text, if there are images.
  Duration step_time{};
  Bytes peak_allocated{};  // On the fullest GPU; 0: not measured.
  // Whether that is the memory which the allocator reserved, not what was
  // allocated of it.
  bool peak_reserved = false;
  RunSplit split = RunSplit::kByHash;
  // Fingerprint of a configuration: framework, cluster, model, setup without
  // `host_us`, layout without the number of replicas, microbatch and sequence.
  // Without the batch and the number of GPUs, for which tables repeat a
  // configuration.
  Fingerprint configuration{};

  int64_t microbatches() const {  // Per step and replica.
    return global_batch / (microbatch * parallel.dp);
  }
};

// Parses at least one run; every number is in range, the model valid, the
// global batch a multiple of microbatch x dp.
absl::StatusOr<std::vector<MeasuredRun>> ParseMeasuredRuns(
    absl::string_view text, const std::string& file_name);

// Returns the run as a job on that cluster, which gets as many nodes as the run
// has. Replicas are neighbours, as in the frameworks that were measured.
JobSpec JobOf(const MeasuredRun& run, ClusterSpec cluster);

// Returns the sequences of a step, over all replicas.
BatchMetadata BatchOf(const MeasuredRun& run);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_MEASURED_RUNS_H_
