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

// A GPU type: peak rates of its data sheet, and the shares of them that kernels
// reach.
struct DeviceSpec {
  std::string name{};  // "h800-sxm"
  FlopRate bf16;       // Peak of dense products.
  FlopRate fp8;        // Peak of dense products; 0: no fp8 units.
  Bytes memory{};
  Bandwidth memory_bandwidth{};
  // Share of the peak that a large, well-shaped product reaches, in (0, 1].
  double gemm_efficiency = 0;
  double attention_efficiency = 0;  // Long fused attention, head_dim 128.
  // Share of memory_bandwidth of streaming kernels.
  double memory_efficiency = 0;
  // Speed of 16-bit products, of fp8 products and of fused attention in a
  // training step, relative to single measured ones. Below 1 where a step draws
  // so much power that the GPU lowers its clock. In (0, 1].
  double sustained_bf16 = 1;
  double sustained_fp8 = 1;
  double sustained_attention = 1;
  Duration kernel_overhead{};  // Least time of one operator.
  Bandwidth host_bandwidth{};  // To the CPU's memory, in one direction.
  std::string source{};
  bool operator==(const DeviceSpec&) const = default;
};

// A link between two GPUs, in one direction.
struct LinkSpec {
  Duration latency{};
  Bandwidth bandwidth{};
  bool operator==(const LinkSpec&) const = default;
};

// A high-bandwidth domain: the set of GPUs joined by the fast links
// (`intra_node`).
enum class DomainKind {
  kNode,    // The GPUs of a node.
  kSwitch,  // Each run of `gpus` GPUs: 72 for an NVL72.
  // Each cube of `gpus` GPUs; optical switches join the cubes of a group that
  // fills them completely.
  kCube,
  kHopRing  // Nodes on a ring, each linked to `hops` nodes on either side.
};
// The high-bandwidth domains of a cluster.
struct DomainSpec {
  DomainKind kind = DomainKind::kNode;
  int32_t gpus = 0;  // Size for kSwitch and kCube; a multiple of gpus_per_node.
  int32_t hops = 0;  // For kHopRing; at least 1.
  bool operator==(const DomainSpec&) const = default;
};

// How concurrent transfers share the network card of a node.
enum class NicSharing {
  kNone,    // No sharing: each transfer has the full rate.
  kInTurn,  // One at a time out of a card and one into it.
  kFair,    // All at once, each with a share of the card's rate.
};

// Nodes whose device or precision differs from that of the cluster.
struct NodeGroup {
  int32_t first_node = 0;
  int32_t num_nodes = 0;
  // The run of nodes repeats with this period; 0: it occurs once.
  int32_t every = 0;
  DeviceSpec device{};
  // For all modules on these nodes; unset: each module's own.
  std::optional<Precision> precision{};
  bool operator==(const NodeGroup&) const = default;
};

// A slow GPU: its computation, and so that of its whole rank, takes `factor`
// times as long.
struct SlowGpu {
  int32_t gpu = 0;
  double factor = 1;
  bool operator==(const SlowGpu&) const = default;
};
// A slow link: transfers from one node to another, in this direction, take
// `factor` times as long, and so do reductions and gathers over replicas on a
// ring that passes it.
struct SlowNodeLink {
  int32_t from_node = 0;
  int32_t to_node = 0;
  double factor = 1;
  bool operator==(const SlowNodeLink&) const = default;
};

// Standard deviations, relative to the mean, of values that vary from step to
// step.
struct JitterSpec {
  double compute = 0;  // In [0, 1].
  double links = 0;    // In [0, 1].
  bool operator==(const JitterSpec&) const = default;
};

// All machines of a job.
struct ClusterSpec {
  std::string name{};
  DeviceSpec device{};
  int32_t num_nodes = 0;
  int32_t gpus_per_node = 0;
  LinkSpec intra_node{};  // Per GPU (NVLink, or PCIe without it).
  // Per network card if nics_per_node is set, else per GPU.
  LinkSpec inter_node{};
  std::string source{};
  DomainSpec domain{};
  int32_t nics_per_node = 0;  // Divides gpus_per_node; 0: one per GPU.
  NicSharing nic_sharing = NicSharing::kNone;
  std::vector<NodeGroup> node_groups{};  // No node is in two groups.
  std::vector<SlowGpu> slow_gpus{};
  std::vector<SlowNodeLink> slow_links{};
  JitterSpec jitter{};
  bool operator==(const ClusterSpec&) const = default;

  int32_t num_gpus() const { return num_nodes * gpus_per_node; }
  // Returns the number of neighbouring GPUs that share a network card.
  int32_t gpus_per_nic() const {
    return nics_per_node > 0 ? gpus_per_node / nics_per_node : 1;
  }
  bool SameNode(int32_t gpu_a, int32_t gpu_b) const {
    return gpu_a / gpus_per_node == gpu_b / gpus_per_node;
  }
  // Returns whether fast links join the two GPUs. REQUIRES: both in [0,
  // num_gpus()).
  bool Joined(int32_t gpu_a, int32_t gpu_b) const;
  // Returns whether fast links join every group of `gpus` neighbouring GPUs
  // that starts at a multiple of `gpus`.
  bool JoinsGroup(int64_t gpus) const;
  // Returns the link between two GPUs. emulator/stage/cluster_view.h accounts
  // for slow links and for what the GPUs of a rank send at once. REQUIRES: as
  // Joined().
  const LinkSpec& Link(int32_t gpu_a, int32_t gpu_b) const {
    return Joined(gpu_a, gpu_b) ? intra_node : inter_node;
  }
  // Returns the index of the node's group in node_groups; -1 for a node with
  // the cluster's own device.
  int32_t GroupOfNode(int32_t node) const;
  // Returns the device of a node group. `group` is a result of GroupOfNode().
  const DeviceSpec& DeviceOf(int32_t group) const {
    return group < 0 ? device : node_groups[static_cast<size_t>(group)].device;
  }
  // Returns whether GPUs or links differ, so that replicas may differ.
  bool is_mixed() const {
    return !node_groups.empty() || !slow_gpus.empty() || !slow_links.empty();
  }
};

// Checks the cluster: counts and rates are > 0, efficiencies in (0, 1], nodes
// and GPUs exist. Returns InvalidArgument that names the field. O(nodes) if
// there are node groups.
absl::Status ValidateClusterSpec(const ClusterSpec& cluster);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_CLUSTER_SPEC_H_
