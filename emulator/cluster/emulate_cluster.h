// Emulation of a whole data-parallel step: the replicas' plans concurrently,
// the reduction of gradients over them, the optimizer and the gather of
// weights.
//
//   replica 0   F F F B B B|          |        |
//   replica 1   F F F F B B B B|      |        |
//   rank's link         [reduce-scatter]       [all-gather]
//                                     [optimizer]
//
// For each pipeline rank: the gradients of a stage become ready, bucket by
// bucket, while the stage's last weight gradient (or fused backward) runs; a
// bucket is reduced once every replica has it and the rank's data-parallel link
// is free, overlapped with what the rank still computes. The optimizer follows
// when everything is reduced and the rank is done in every replica; then
// weights are gathered. The step ends when all ranks of all replicas are done.
//
// Reuse: replicas with equal plans and equal slow ranks are emulated once, and
// the tp x cp GPUs of a rank act as one. Without reuse, every GPU of every
// replica is emulated separately; results are bit-identical.
#ifndef PIPELOOM_EMULATOR_CLUSTER_EMULATE_CLUSTER_H_
#define PIPELOOM_EMULATOR_CLUSTER_EMULATE_CLUSTER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "emulator/stage/rank_update.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/execution_plan.h"

namespace pipeloom::emulator {

// Options of EmulateCluster().
struct ClusterOptions {
  EmulateOptions step{};  // For every replica.
  // A slow rank of one replica, in addition to `step.slow_ranks`.
  struct SlowReplicaRank {
    int32_t replica = 0;
    RankId rank{};
    double factor = 1;
  };
  std::vector<SlowReplicaRank> slow{};
  // Whether a bucket is reduced as soon as it is ready instead of after the
  // last task.
  bool overlap_reduction = true;
  // Whether weights are gathered during the next step's first forwards, one
  // bucket after another. A step is then longer by the time for which forwards
  // wait for weights, instead of by each update's `gather`.
  bool gather_in_forwards = false;
  // Share of a hidden reduction's or gather's time that the passes of its rank
  // lose to it: multiprocessors and bandwidth. In [0, 1]. The reduction ends so
  // much later.
  double contention = 0;
  // Whether the optimizer waits for the gradients' norm over all ranks.
  bool clip_gradients = false;
  int32_t gpus_per_rank = 1;  // tp x cp.
  bool reuse = true;
};

// The work that the emulation did and reused.
struct ClusterCounters {
  int64_t replicas = 0;
  int64_t replicas_emulated = 0;  // The others equal one of these.
  int64_t gpus = 0;
  int64_t gpus_emulated = 0;  // The others act as one of these does.
  int64_t tasks = 0;          // On all GPUs.
  int64_t tasks_emulated = 0;
  // Returns the share of tasks that were not emulated themselves.
  double hit_ratio() const {
    return tasks == 0 ? 0
                      : 1 - static_cast<double>(tasks_emulated) /
                                static_cast<double>(tasks);
  }
};

// The times of a step on all replicas.
struct ClusterStep {
  SimTime finish{};
  struct Rank {
    SimTime computed{};  // When the last replica had computed.
    SimTime reduced{};
    SimTime updated{};  // The optimizer has stepped.
    SimTime gathered{};
    bool operator==(const Rank&) const = default;
  };
  IdVector<RankId, Rank> ranks{};
  // When the pipeline of each replica was done, without the update. Indexed by
  // replica.
  std::vector<SimTime> pipeline_finish{};
  // Computing time of all tasks of one GPU of each rank, over all replicas.
  Duration busy{};

  Duration step_time() const { return finish - kStepStart; }
  // Returns the replica whose pipeline was done last.
  int32_t slowest_replica() const;
  // Returns the time that reduction, optimizer and gather add after the slowest
  // pipeline.
  Duration tail() const;
  bool operator==(const ClusterStep&) const = default;
};

// The result of EmulateCluster().
struct ClusterResult {
  ClusterStep step{};
  ClusterCounters counters{};
};

// Emulates one plan per replica; equal replicas may share one. `updates` are
// indexed by rank and replace the plans' epilogues; if empty, each plan keeps
// its own epilogues (then nothing overlaps). Returns the errors of EmulateStep,
// with the replica, and InvalidArgument: no replicas, plans of different
// numbers of ranks, an option out of range.
absl::StatusOr<ClusterResult> EmulateCluster(
    absl::Span<const ExecutionPlan* const> replicas,
    const IdVector<RankId, RankUpdate>& updates,
    const ClusterOptions& options = {});

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CLUSTER_EMULATE_CLUSTER_H_
