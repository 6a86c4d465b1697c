// The machines of a job: one device type, nodes of equal size, and the links
// inside and between them.
//
// Global GPU g is on node g / gpus_per_node. A pipeline rank of a replica is
// tp x cp (x ep) neighbouring GPUs; see ir/parallel_layout.h.
#ifndef PIPELOOM_IR_CLUSTER_SPEC_H_
#define PIPELOOM_IR_CLUSTER_SPEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/units.h"

namespace pipeloom {

struct DeviceSpec {
  std::string name{};  // "h800-sxm"
  FlopRate bf16;       // Dense peak.
  FlopRate fp8;        // Dense peak; 0: no fp8 units.
  Bytes memory{};
  Bandwidth memory_bandwidth{};
  // Share of the peak that a large, well-shaped product reaches, in (0, 1].
  double gemm_efficiency = 0;
  double attention_efficiency = 0;  // Fused attention, head_dim 128, long.
  double memory_efficiency = 0;     // Streaming kernels, of memory_bandwidth.
  Duration kernel_overhead{};       // Least time of one operator.
  Bandwidth host_bandwidth{};       // To the CPU's memory, one direction.
  std::string source{};
  bool operator==(const DeviceSpec&) const = default;
};

// One direction between two GPUs.
struct LinkSpec {
  Duration latency{};
  Bandwidth bandwidth{};
  bool operator==(const LinkSpec&) const = default;
};

struct ClusterSpec {
  std::string name{};
  DeviceSpec device{};
  int32_t num_nodes = 0;
  int32_t gpus_per_node = 0;
  LinkSpec intra_node{};  // Per GPU (NVLink, or PCIe without it).
  LinkSpec inter_node{};  // Per GPU (its share of the node's NICs).
  std::string source{};
  bool operator==(const ClusterSpec&) const = default;

  int32_t num_gpus() const { return num_nodes * gpus_per_node; }
  bool SameNode(int32_t gpu_a, int32_t gpu_b) const {
    return gpu_a / gpus_per_node == gpu_b / gpus_per_node;
  }
  // REQUIRES: both in [0, num_gpus()).
  const LinkSpec& Link(int32_t gpu_a, int32_t gpu_b) const {
    return SameNode(gpu_a, gpu_b) ? intra_node : inter_node;
  }
};

// InvalidArgument names the field: counts and rates must be > 0, efficiencies
// in (0, 1].
absl::Status ValidateClusterSpec(const ClusterSpec& cluster);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_CLUSTER_SPEC_H_
