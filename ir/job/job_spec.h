// One training job: model, cluster, parallel layout, training set-up and
// search defaults. The JOB file of the command line (docs: README).
#ifndef PIPELOOM_IR_JOB_JOB_SPEC_H_
#define PIPELOOM_IR_JOB_JOB_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/model_spec.h"
#include "ir/job/parallel_layout.h"
#include "ir/job/training_setup.h"

namespace pipeloom {

// What may be done with a stage's activations between forward and backward.
enum class MemoryStrategy { kKeep, kRecompute, kOffload };

// What is divided over the replicas, each also what stands before it: nothing,
// the optimizer's state, the gradients, the weights.
enum class OptimizerSharding { kNone, kZero1, kZero2, kZero3 };

// What the framework divides where a job does not say.
OptimizerSharding ShardingOf(Framework framework);

// How sequences of different lengths share a sub-microbatch.
enum class SequenceBatching {
  kPacked,  // End to end; attention stays within each (variable length).
  kPadded,  // Each as long as the longest.
};

// Which samples of a step go to which replica and microbatch.
enum class SampleAssignment {
  kInOrder,   // As they come.
  kBalanced,  // By cost: replicas even, microbatches even and well ordered.
};

struct TrainingSpec {
  int32_t microbatches = 0;       // A step's, per replica; at least 1.
  int64_t microbatch_tokens = 0;  // Backbone tokens a microbatch holds at most.
  int64_t microbatch_images = 0;  // Images and clips at most; 0: no limit.
  double microbatch_seconds = 0;  // Clip or audio seconds at most; 0: no limit.
  OptimizerSharding optimizer_sharding = OptimizerSharding::kZero1;
  SequenceBatching batching = SequenceBatching::kPacked;
  // Changes nothing of the step's samples as a whole, nor of their gradient.
  SampleAssignment assignment = SampleAssignment::kInOrder;
  // Allowed; kKeep is always allowed.
  std::vector<MemoryStrategy> memory_strategies = {MemoryStrategy::kKeep,
                                                   MemoryStrategy::kRecompute};
  std::vector<std::string> frozen_modules{};  // By module name.
  // Of one GPU, for everything, taken as it is; 0: the device's memory less
  // the reserve.
  Bytes memory_limit{};
  // Share of the device's memory that plans leave free, for fragmentation and
  // what no account has; in [0, 1). Not taken from `memory_limit`.
  double memory_reserve = 0.03;
  // Instances (images, clips; packed sequences for a backbone) of a
  // sub-microbatch, by module name; modules not named: chosen.
  struct SubMicrobatchSize {
    std::string module;
    int64_t instances = 0;
    bool operator==(const SubMicrobatchSize&) const = default;
  };
  std::vector<SubMicrobatchSize> sub_microbatch_sizes{};
  bool operator==(const TrainingSpec&) const = default;
};

// What every partition of the job must keep (docs/partition.md).
struct PartitionRules {
  // Layers [first, first + count) of a module; a negative `first` counts from
  // the end: -1 is the last layer.
  struct Layers {
    std::string module{};
    int32_t first = 0;
    int32_t count = 1;
    bool operator==(const Layers&) const = default;
  };
  // All these layers are on one rank; those of one entry also in one stage.
  struct Together {
    std::vector<Layers> layers{};
    // Which rank: from 0, or from the end, -1 being the last.
    std::optional<int32_t> rank{};
    bool operator==(const Together&) const = default;
  };
  std::vector<Together> together{};
  // A module's stages are all on ranks [first_rank, first_rank + num_ranks).
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

// Tensor and context parallelism of a module's stages below the rank's. The
// rank's GPUs then hold `copies` of such a stage, each with other instances of
// a sub-microbatch:
//
//   tp 4, module's tp 2:   GPU  0  1 | 2  3
//                         copy  0  0 | 1  1
//
// Weights are divided by the module's tp; their gradients are added up over the
// copies too. Tensors are regrouped where the module meets others.
struct ModuleParallelism {
  std::string module{};
  int32_t tp = 0;  // Divides the job's; 0: the job's.
  int32_t cp = 0;  // Divides the job's; 0: the job's.
  bool operator==(const ModuleParallelism&) const = default;
};

struct SearchSpec {
  std::string schedule = "pipeloom";
  Duration deadline = Milliseconds(100);
  int64_t evaluations = 0;  // 0: until the deadline.
  uint64_t seed = 1;
  bool operator==(const SearchSpec&) const = default;
};

struct JobSpec {
  std::string name{};
  ModelSpec model{};
  ClusterSpec cluster{};
  ParallelLayout parallel{};
  std::vector<ModuleParallelism> module_parallelism{};  // Not named: parallel.
  TrainingSpec training{};
  TrainingSetup setup{};
  PartitionRules partition{};
  SearchSpec search{};
  std::string source{};
  bool operator==(const JobSpec&) const = default;

  bool IsFrozen(ModuleId module) const;
  bool Allows(MemoryStrategy strategy) const;
  // How the job's GPUs hold the module: its tp and cp, and as many times more
  // replicas as a rank has copies. As many GPUs as `parallel` has.
  ParallelLayout LayoutOf(ModuleId module) const;
  // Of the module's stages in a rank; 1 unless module_parallelism says more.
  int32_t CopiesOf(ModuleId module) const;
  // Of one GPU, after the rule above.
  Bytes MemoryLimit() const;
  // The same of a GPU of another device.
  Bytes MemoryLimit(const DeviceSpec& device) const;
  // What the reserve takes of the device; 0 under a limit of the job's own.
  Bytes MemoryReserve() const;
};

// Checks all parts and that they fit together (enough GPUs, names that exist).
// InvalidArgument names the field, the value and what is allowed.
absl::Status ValidateJobSpec(const JobSpec& job);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_JOB_SPEC_H_
