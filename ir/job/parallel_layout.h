// How the GPUs of a job are divided: dp replicas of a pipeline of pp ranks,
// each rank a group of tp x cp GPUs acting as one.
//
//   pipeline inside:  GPU(d, r, k) = (d * pp + r) * tp * cp + k
//   replicas inside:  GPU(d, r, k) = (r * dp + d) * tp * cp + k
//
// where d is the replica, r the rank and k the member of its group.
#ifndef PIPELOOM_IR_JOB_PARALLEL_LAYOUT_H_
#define PIPELOOM_IR_JOB_PARALLEL_LAYOUT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "ir/ids.h"
#include "ir/job/cluster_spec.h"

namespace pipeloom {

// How the GPUs of a context-parallel group share attention.
enum class ContextParallelism {
  kRing,       // Keys and values go round, overlapped with attention.
  kAllGather,  // Keys and values are gathered before attention.
  kAllToAll,   // Tokens are exchanged for heads, and back after attention.
};

// The order of the GPU groups of ranks: which of them are neighbours.
enum class GpuOrder {
  kPipelineInside,  // The ranks of a replica.
  kReplicasInside,  // The replicas of a rank, as in Megatron-Core.
};

// Sizes of the parallel dimensions of a job.
struct ParallelLayout {
  int32_t tp = 1;  // Tensor parallel, with sequence parallelism.
  int32_t cp = 1;  // Context parallel.
  // Expert parallel; lies inside dp x cp x tp / expert_tp, adds no GPUs.
  int32_t ep = 1;
  int32_t pp = 1;  // Pipeline ranks.
  int32_t dp = 1;  // Replicas.
  ContextParallelism context = ContextParallelism::kRing;
  GpuOrder order = GpuOrder::kPipelineInside;
  // Tensor-parallel GPUs of a routed expert: 1, tp, or 0, which is tp. The
  // other GPUs of a tensor-parallel group have other experts or replicas.
  int32_t expert_tp = 0;
  bool operator==(const ParallelLayout&) const = default;

  int32_t gpus_per_rank() const { return tp * cp; }
  // Returns the number of GPUs that hold all routed experts of a layer once.
  int64_t expert_gpus() const {
    return int64_t{ep} * (expert_tp > 0 ? expert_tp : tp);
  }
  // Returns the largest ep: the experts of a layer lie on the GPUs of its rank
  // in all replicas.
  int64_t most_ep() const {
    return int64_t{dp} * cp * tp / (expert_tp > 0 ? expert_tp : tp);
  }
  // Returns the number of GPUs of all replicas. REQUIRES: below 2^63, which
  // ValidateParallelLayout ensures.
  int64_t num_gpus() const { return int64_t{1} * tp * cp * pp * dp; }
  // Returns the first GPU of a rank.
  int32_t FirstGpu(int32_t replica, RankId rank) const {
    return (order == GpuOrder::kPipelineInside ? replica * pp + rank.value()
                                               : rank.value() * dp + replica) *
           gpus_per_rank();
  }
};

// Checks the sizes. Returns InvalidArgument for a size below 1, for more GPUs
// than the cluster has (says how many are needed), or for an ep that does not
// divide most_ep().
absl::Status ValidateParallelLayout(const ParallelLayout& layout,
                                    const ClusterSpec& cluster);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_PARALLEL_LAYOUT_H_
