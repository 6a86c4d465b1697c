// A measured training run: one row of a table (measured_runs.h).
#ifndef PIPELOOM_FORMATS_PROFILE_MEASURED_RUN_H_
#define PIPELOOM_FORMATS_PROFILE_MEASURED_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/fingerprint.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/job/batch_metadata.h"
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

// The memory that was measured.
enum class PeakKind {
  kAllocated,  // Allocated on the fullest GPU.
  kReserved,   // Reserved by the allocator there.
  kMean,       // Allocated, mean over the GPUs.
  kUsed,       // Reserved and the process's context, as nvidia-smi shows it.
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
  // Modules of a shipped model that predict one more token each, which the
  // caller adds to it (AddPredictedTokens).
  int64_t predicted_tokens = 0;
  // Whether a shipped model's rotations are operators of PyTorch, which the
  // caller notes in its layers (AttentionSpec::scaled_rotary).
  bool scaled_rotary = false;
  // Images of a sample, in addition to its text, and their size.
  int32_t images = 0;
  ImageSize image{};
  int32_t videos = 0;  // Clips of a sample, and their size.
  VideoClip video{};
  std::vector<std::string> frozen_modules{};
  ParallelLayout parallel{};
  // Tensor parallelism of modules ahead of the backbone, if it is smaller than
  // the backbone's: other GPUs of a rank repeat their work. 0: the backbone's.
  int32_t encoder_tp = 0;
  // Whether the modules ahead of the backbone are on one GPU of their own,
  // which serves all replicas; it is not among the pipeline's ranks.
  bool encoder_apart = false;
  // Whether `step_time` is that in milliseconds that a step of one second with
  // the encoder in the first stage becomes, as only the ratio was published.
  bool relative = false;
  // Transformer layers of the backbone by stage, if they were given; other
  // modules are in the first stage.
  std::vector<int32_t> stage_layers{};
  int32_t chunks = 1;  // Model chunks per rank (virtual pipeline).
  TrainingSetup setup{};
  OptimizerSharding sharding = OptimizerSharding::kZero1;
  bool recompute = false;  // Transformer layers, one by one.
  // The number that is recomputed, the first of each rank; 0: all.
  int32_t recomputed_layers = 0;
  // The same of each module ahead of the backbone; 0: as the backbone's.
  int32_t recomputed_encoder_layers = 0;
  // Or these operator groups of every layer, and whole layers with experts.
  OperatorGroups recompute_groups{};
  bool recompute_experts = false;
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
  Bytes peak_allocated{};  // 0: not measured.
  PeakKind peak_kind = PeakKind::kAllocated;
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

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_MEASURED_RUN_H_
