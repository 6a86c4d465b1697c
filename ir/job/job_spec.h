// One training job: model, cluster, parallel layout, training set-up and search
// defaults. Read from the JOB file of the command line (docs/tutorial.md).
#ifndef PIPELOOM_IR_JOB_JOB_SPEC_H_
#define PIPELOOM_IR_JOB_JOB_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "ir/ids.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"

namespace pipeloom {

// Ways to treat the activations of a stage between forward and backward.
enum class MemoryStrategy { kKeep, kRecompute, kOffload };

// State that is divided over the replicas. Each value includes the ones before
// it: nothing, the optimizer's state, the gradients, the weights.
enum class OptimizerSharding { kNone, kZero1, kZero2, kZero3 };

// Returns the framework's default for jobs that do not set it.
OptimizerSharding ShardingOf(Framework framework);

// How sequences of different lengths share a sub-microbatch.
enum class SequenceBatching {
  kPacked,  // End to end; attention stays within each (variable length).
  kPadded,  // Each padded to the longest.
};

// How the samples of a step are assigned to replicas and microbatches.
enum class SampleAssignment {
  kInOrder,  // In the order of the batch.
  // Balanced by cost: equal replicas, equal and well-ordered microbatches.
  kBalanced,
};

// Batch sizes, memory and other settings of the training.
struct TrainingSpec {
  int32_t microbatches = 0;        // Per step and replica; at least 1.
  int64_t microbatch_tokens = 0;   // Most backbone tokens of a microbatch.
  int64_t microbatch_samples = 0;  // Most samples; 0: no limit.
  int64_t microbatch_images = 0;   // Most images and clips; 0: no limit.
  // Most seconds of clips or audio; 0: no limit.
  double microbatch_seconds = 0;
  OptimizerSharding optimizer_sharding = OptimizerSharding::kZero1;
  SequenceBatching batching = SequenceBatching::kPacked;
  // Does not change the set of samples of a step, nor their gradient.
  SampleAssignment assignment = SampleAssignment::kInOrder;
  // Strategies that plans may use; kKeep is always allowed.
  std::vector<MemoryStrategy> memory_strategies = {MemoryStrategy::kKeep,
                                                   MemoryStrategy::kRecompute};
  std::vector<std::string> frozen_modules{};  // Names of modules.
  // Memory of one GPU that a plan may use, with nothing subtracted; 0: the
  // device's memory less the reserve.
  Bytes memory_limit{};
  // Share of the device's memory that plans leave free, for fragmentation and
  // whatever is not accounted for; in [0, 1). Not subtracted from
  // `memory_limit`.
  double memory_reserve = 0.03;
  // Instances (images, clips; packed sequences for a backbone) of a
  // sub-microbatch of the named module. For modules not named, the size is
  // chosen.
  struct SubMicrobatchSize {
    std::string module;
    int64_t instances = 0;
    bool operator==(const SubMicrobatchSize&) const = default;
  };
  std::vector<SubMicrobatchSize> sub_microbatch_sizes{};
  // Token counts to which sub-microbatches of the named module are padded, so
  // that CUDA graphs and kernels made for fixed shapes can run them: each to
  // the smallest that it does not exceed, on each copy of the module in a rank.
  // A larger one runs as it is, without a graph.
  struct ShapeBuckets {
    std::string module;
    std::vector<int64_t> tokens{};  // Ascending.
    bool operator==(const ShapeBuckets&) const = default;
  };
  std::vector<ShapeBuckets> shape_buckets{};
  bool operator==(const TrainingSpec&) const = default;
};

// Constraints on every partition of the job (docs/partition.md).
struct PartitionRules {
  // Layers [first, first + count) of a module; a negative `first` counts from
  // the end: -1 is the last layer.
  struct Layers {
    std::string module{};
    int32_t first = 0;
    int32_t count = 1;
    bool operator==(const Layers&) const = default;
  };
  // Layers that must be on one rank; the layers of one entry also in one stage.
  struct Together {
    std::vector<Layers> layers{};
    // The required rank: counted from 0, or from the end, -1 being the last.
    std::optional<int32_t> rank{};
    bool operator==(const Together&) const = default;
  };
  std::vector<Together> together{};
  // A module whose stages must all be on ranks [first_rank, first_rank +
  // num_ranks).
  struct OwnRanks {
    std::string module{};
    int32_t first_rank = 0;
    int32_t num_ranks = 1;
    bool operator==(const OwnRanks&) const = default;
  };
  std::vector<OwnRanks> own_ranks{};
  bool operator==(const PartitionRules&) const = default;
  bool empty() const { return together.empty() && own_ranks.empty(); }
};

// Tensor and context parallelism of a module's stages, smaller than those of
// the rank. The GPUs of the rank then hold several copies of such a stage, each
// with other instances of a sub-microbatch:
//
//   tp 4, module's tp 2:   GPU  0  1 | 2  3
//                         copy  0  0 | 1  1
//
// Weights are divided by the module's tp; their gradients are also summed over
// the copies. Tensors are regrouped where the module meets others.
struct ModuleParallelism {
  std::string module{};
  int32_t tp = 0;  // Divides the job's tp; 0: the job's tp.
  int32_t cp = 0;  // Divides the job's cp; 0: the job's cp.
  // Whether every copy works on all instances and is updated by itself, as in
  // trainers that only make the module's tensor-parallel groups smaller.
  bool repeats = false;
  bool operator==(const ModuleParallelism&) const = default;
};

// Defaults of the search for schedules.
inline constexpr int32_t kMostSearchWorkers = 256;

struct SearchSpec {
  std::string schedule = "pipeloom";
  Duration deadline = Milliseconds(100);
  int64_t evaluations = 0;  // Budget in evaluations; 0: until the deadline.
  uint64_t seed = 1;
  int32_t workers = 0;  // Searchers of an order; 0: as many as usual.
  bool operator==(const SearchSpec&) const = default;
};

// A link from a rank to another, in every replica, whose transfers keep it busy
// for `factor` times as long, and arrive `added` later besides.
struct SlowRankLink {
  RankId from{};
  RankId to{};
  double factor = 1;
  Duration added{};
  bool operator==(const SlowRankLink&) const = default;
};

// One training job.
struct JobSpec {
  std::string name{};
  ModelSpec model{};
  ClusterSpec cluster{};
  ParallelLayout parallel{};
  // Modules not named here use `parallel`.
  std::vector<ModuleParallelism> module_parallelism{};
  TrainingSpec training{};
  TrainingSetup setup{};
  PartitionRules partition{};
  SearchSpec search{};
  // Not in files: an option of planning, for links that have become slow.
  std::vector<SlowRankLink> slow_rank_links{};
  std::string source{};
  bool operator==(const JobSpec&) const = default;

  // Returns whether the weights of the module are not trained.
  bool IsFrozen(ModuleId module) const;
  // Returns whether plans may use the strategy.
  bool Allows(MemoryStrategy strategy) const;
  // Returns the layout by which the job's GPUs hold the module: with its tp and
  // cp, and with dp multiplied by its copies in a rank. It has as many GPUs as
  // `parallel`, or as one of copies that repeat the same work.
  ParallelLayout LayoutOf(ModuleId module) const;
  // Returns how many copies of the module's stages share a rank's work; 1
  // unless module_parallelism sets a smaller tp or cp.
  int32_t CopiesOf(ModuleId module) const;
  // Returns the token counts of training.shape_buckets for the module; empty:
  // its shapes are not padded.
  absl::Span<const int64_t> BucketsOf(ModuleId module) const;
  // Returns the memory of one GPU that plans may use: training.memory_limit, or
  // the device's memory less the reserve.
  Bytes MemoryLimit() const;
  // Returns the same for a GPU of another device.
  Bytes MemoryLimit(const DeviceSpec& device) const;
  // Returns the size of the reserve; 0 if training.memory_limit is set.
  Bytes MemoryReserve() const;
};

// Checks all parts and that they fit together (enough GPUs, names that exist).
// Returns InvalidArgument that names the field, the value and what is allowed.
absl::Status ValidateJobSpec(const JobSpec& job);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_JOB_SPEC_H_
