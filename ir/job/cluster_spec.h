// The machines of a job: nodes of equal size, their devices, the links inside
// and between them, and which of them are slow.
//
// Global GPU g is on node g / gpus_per_node. A pipeline rank of a replica is
// tp x cp (x ep) neighbouring GPUs; see ir/job/parallel_layout.h.
#ifndef PIPELOOM_IR_JOB_CLUSTER_SPEC_H_
#define PIPELOOM_IR_JOB_CLUSTER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/units.h"
#include "ir/job/model_spec.h"

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

// Which GPUs the fast links (`intra_node`) join, a high-bandwidth domain.
enum class DomainKind {
  kNode,    // Those of a node.
  kSwitch,  // Those of each run of `gpus`: 72 of an NVL72.
  kCube,    // Those of each cube of `gpus`; cubes that a group fills whole are
            // joined by optical switches.
  kHopRing  // Nodes on a ring, each linked to the `hops` next on either side.
};
struct DomainSpec {
  DomainKind kind = DomainKind::kNode;
  int32_t gpus = 0;  // kSwitch, kCube: of a domain; a multiple of a node's.
  int32_t hops = 0;  // kHopRing: at least 1.
  bool operator==(const DomainSpec&) const = default;
};

// How transfers that meet at a node's network card share it.
enum class NicSharing {
  kNone,    // As if each had a card of its own.
  kInTurn,  // One at a time out of a card and one into it.
  kFair,    // All at once, each at a share of the card's rate.
};

// Nodes with another device than the cluster's, or that compute otherwise.
struct NodeGroup {
  int32_t first_node = 0;
  int32_t num_nodes = 0;
  int32_t every = 0;  // The run of nodes comes again every so many; 0: once.
  DeviceSpec device{};
  std::optional<Precision> precision{};  // Of every module there; its own.
  bool operator==(const NodeGroup&) const = default;
};

// What a slow GPU computes takes `factor` times as long, and with it what its
// rank computes; transfers between two nodes, in this direction, likewise.
struct SlowGpu {
  int32_t gpu = 0;
  double factor = 1;
  bool operator==(const SlowGpu&) const = default;
};
struct SlowNodeLink {
  int32_t from_node = 0;
  int32_t to_node = 0;
  double factor = 1;
  bool operator==(const SlowNodeLink&) const = default;
};

// Standard deviations of what varies from step to step, of its mean.
struct JitterSpec {
  double compute = 0;  // In [0, 1].
  double links = 0;    // In [0, 1].
  bool operator==(const JitterSpec&) const = default;
};

struct ClusterSpec {
  std::string name{};
  DeviceSpec device{};
  int32_t num_nodes = 0;
  int32_t gpus_per_node = 0;
  LinkSpec intra_node{};  // Per GPU (NVLink, or PCIe without it).
  // Of a network card if nics_per_node is given, else of each GPU.
  LinkSpec inter_node{};
  std::string source{};
  DomainSpec domain{};
  int32_t nics_per_node = 0;  // Divides gpus_per_node; 0: one for each GPU.
  NicSharing nic_sharing = NicSharing::kNone;
  std::vector<NodeGroup> node_groups{};  // No node is in two.
  std::vector<SlowGpu> slow_gpus{};
  std::vector<SlowNodeLink> slow_links{};
  JitterSpec jitter{};
  bool operator==(const ClusterSpec&) const = default;

  int32_t num_gpus() const { return num_nodes * gpus_per_node; }
  // Neighbouring GPUs that share a network card.
  int32_t gpus_per_nic() const {
    return nics_per_node > 0 ? gpus_per_node / nics_per_node : 1;
  }
  bool SameNode(int32_t gpu_a, int32_t gpu_b) const {
    return gpu_a / gpus_per_node == gpu_b / gpus_per_node;
  }
  // Fast links join the two. REQUIRES: both in [0, num_gpus()).
  bool Joined(int32_t gpu_a, int32_t gpu_b) const;
  // Fast links join each such group of neighbours, the first GPU of which is a
  // multiple of its size.
  bool JoinsGroup(int64_t gpus) const;
  // REQUIRES: as Joined(). For what a rank's GPUs send at once and for slow
  // links see emulator/stage/cluster_view.h.
  const LinkSpec& Link(int32_t gpu_a, int32_t gpu_b) const {
    return Joined(gpu_a, gpu_b) ? intra_node : inter_node;
  }
  // Into node_groups; -1: the cluster's own device.
  int32_t GroupOfNode(int32_t node) const;
  const DeviceSpec& DeviceOf(int32_t group) const {
    return group < 0 ? device : node_groups[static_cast<size_t>(group)].device;
  }
  // Some GPUs are slow or of another device, so replicas may differ.
  bool is_mixed() const {
    return !node_groups.empty() || !slow_gpus.empty() || !slow_links.empty();
  }
};

// InvalidArgument names the field: counts and rates must be > 0, efficiencies
// in (0, 1], nodes and GPUs must exist. O(nodes) if there are node groups.
absl::Status ValidateClusterSpec(const ClusterSpec& cluster);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_CLUSTER_SPEC_H_
