#include "ir/job/cluster_spec.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {

namespace {

constexpr double kMaxFactor = 1e6;
// With less, passes of usual models would last for centuries, which is more
// nanoseconds than a Duration holds.
constexpr double kLeastFlopRate = 1e9;

// A maker of errors that name a field, its value and what is allowed.
class Refusal {
 public:
  explicit Refusal(const ClusterSpec& cluster) : cluster_(cluster) {}
  absl::Status operator()(const std::string& field, double value,
                          const std::string& allowed) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("cluster \"%s\": %s is %g; it must be %s",
                        cluster_.name, field, value, allowed));
  }

 private:
  const ClusterSpec& cluster_;
};

absl::Status CheckDevice(const DeviceSpec& d, const std::string& at,
                         const Refusal& fail) {
  const struct {
    const char* field;
    double value;
  } positive[] = {
      {"bf16", d.bf16.flops_per_second},
      {"memory", static_cast<double>(d.memory.count())},
      {"memory_bandwidth", d.memory_bandwidth.bytes_per_second},
      {"host_bandwidth", d.host_bandwidth.bytes_per_second},
  };
  for (const auto& p : positive) {
    if (!(p.value > 0)) return fail(at + p.field, p.value, "> 0");
  }
  if (!(d.fp8.flops_per_second >= 0)) {
    return fail(at + "fp8", d.fp8.flops_per_second, ">= 0");
  }
  const struct {
    const char* field;
    double value;
    const char* example;
  } rates[] = {
      {"bf16_flops_per_second", d.bf16.flops_per_second, "989e12"},
      {"fp8_flops_per_second", d.fp8.flops_per_second, "1978e12"},
  };
  for (const auto& r : rates) {
    if (r.value == 0 || r.value >= kLeastFlopRate) continue;
    return fail(at + r.field, r.value,
                absl::StrFormat("at least %g FLOP/s; such as %s is meant?",
                                kLeastFlopRate, r.example));
  }
  if (d.kernel_overhead < kZero) {
    return fail(at + "kernel_overhead",
                static_cast<double>(d.kernel_overhead.count()), ">= 0");
  }
  const struct {
    const char* field;
    double value;
  } efficiencies[] = {
      {"gemm_efficiency", d.gemm_efficiency},
      {"attention_efficiency", d.attention_efficiency},
      {"memory_efficiency", d.memory_efficiency},
      {"sustained_bf16", d.sustained_bf16},
      {"sustained_fp8", d.sustained_fp8},
      {"sustained_attention", d.sustained_attention},
  };
  for (const auto& p : efficiencies) {
    if (!(p.value > 0 && p.value <= 1))
      return fail(at + p.field, p.value, "in (0, 1]");
  }
  return absl::OkStatus();
}

absl::Status CheckDomain(const ClusterSpec& cluster, const Refusal& fail) {
  const DomainSpec& domain = cluster.domain;
  const bool sized =
      domain.kind == DomainKind::kSwitch || domain.kind == DomainKind::kCube;
  if (sized && (domain.gpus <= 0 || domain.gpus % cluster.gpus_per_node != 0)) {
    return fail("domain.gpus", domain.gpus,
                absl::StrFormat("a multiple of gpus_per_node, %d",
                                cluster.gpus_per_node));
  }
  if (!sized && domain.gpus != 0) {
    return fail("domain.gpus", domain.gpus,
                "0 unless the domain is a switch or a cube");
  }
  const bool ring = domain.kind == DomainKind::kHopRing;
  if (ring ? domain.hops < 1 : domain.hops != 0) {
    return fail("domain.hops", domain.hops,
                ring ? "at least 1" : "0 unless the domain is a ring");
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const ClusterSpec& cluster, const Refusal& fail) {
  if (cluster.node_groups.empty()) return absl::OkStatus();
  std::vector<bool> taken(static_cast<size_t>(cluster.num_nodes), false);
  for (size_t g = 0; g < cluster.node_groups.size(); ++g) {
    const NodeGroup& group = cluster.node_groups[g];
    const std::string at = absl::StrFormat("node_groups[%d].", g);
    if (group.num_nodes < 1) {
      return fail(at + "num_nodes", group.num_nodes, "at least 1");
    }
    const int64_t end = int64_t{group.first_node} + group.num_nodes;
    if (group.first_node < 0 || end > cluster.num_nodes) {
      return fail(at + "first_node", group.first_node,
                  absl::StrFormat("such that its %d nodes are among the %d",
                                  group.num_nodes, cluster.num_nodes));
    }
    if (group.every != 0 && group.every < group.num_nodes) {
      return fail(
          at + "every", group.every,
          absl::StrFormat("0 or at least num_nodes, %d", group.num_nodes));
    }
    const int64_t step = group.every > 0 ? group.every : cluster.num_nodes;
    for (int64_t first = group.first_node; first < cluster.num_nodes;
         first += step) {
      const int64_t last =
          std::min<int64_t>(first + group.num_nodes, cluster.num_nodes);
      for (int64_t node = first; node < last; ++node) {
        if (taken[static_cast<size_t>(node)]) {
          return fail(
              at + "first_node", group.first_node,
              absl::StrFormat("elsewhere: node %d is in two groups", node));
        }
        taken[static_cast<size_t>(node)] = true;
      }
    }
    PIPELOOM_RETURN_IF_ERROR(CheckDevice(group.device, at + "device.", fail));
  }
  return absl::OkStatus();
}

absl::Status CheckSlow(const ClusterSpec& cluster, const Refusal& fail) {
  const auto check_factor = [&](const std::string& at, double factor) {
    return factor >= 1 && factor <= kMaxFactor
               ? absl::OkStatus()
               : fail(at + "factor", factor, "in [1, 1e6]");
  };
  const std::string gpus = absl::StrFormat("in [0, %d)", cluster.num_gpus());
  for (size_t i = 0; i < cluster.slow_gpus.size(); ++i) {
    const SlowGpu& slow = cluster.slow_gpus[i];
    const std::string at = absl::StrFormat("slow_gpus[%d].", i);
    if (slow.gpu < 0 || slow.gpu >= cluster.num_gpus()) {
      return fail(at + "gpu", slow.gpu, gpus);
    }
    PIPELOOM_RETURN_IF_ERROR(check_factor(at, slow.factor));
  }
  const std::string nodes = absl::StrFormat("in [0, %d)", cluster.num_nodes);
  for (size_t i = 0; i < cluster.slow_links.size(); ++i) {
    const SlowNodeLink& slow = cluster.slow_links[i];
    const std::string at = absl::StrFormat("slow_links[%d].", i);
    for (const auto& [field, node] :
         {std::pair{"from_node", slow.from_node}, {"to_node", slow.to_node}}) {
      if (node < 0 || node >= cluster.num_nodes) {
        return fail(at + field, node, nodes);
      }
    }
    PIPELOOM_RETURN_IF_ERROR(check_factor(at, slow.factor));
  }
  return absl::OkStatus();
}

}  // namespace

bool ClusterSpec::Joined(int32_t gpu_a, int32_t gpu_b) const {
  if (SameNode(gpu_a, gpu_b)) return true;
  switch (domain.kind) {
    case DomainKind::kNode:
      return false;
    case DomainKind::kSwitch:
    case DomainKind::kCube:
      return gpu_a / domain.gpus == gpu_b / domain.gpus;
    case DomainKind::kHopRing: {
      const int32_t apart =
          std::abs(gpu_a / gpus_per_node - gpu_b / gpus_per_node);
      return std::min(apart, num_nodes - apart) <= domain.hops;
    }
  }
  return false;
}

bool ClusterSpec::JoinsGroup(int64_t gpus) const {
  if (gpus <= gpus_per_node) return true;
  switch (domain.kind) {
    case DomainKind::kNode:
      return false;
    case DomainKind::kSwitch:
      return gpus <= domain.gpus;
    case DomainKind::kCube:
      return gpus <= domain.gpus || gpus % domain.gpus == 0;
    case DomainKind::kHopRing:
      return true;  // A path over neighbouring nodes.
  }
  return false;
}

int32_t ClusterSpec::GroupOfNode(int32_t node) const {
  for (size_t g = 0; g < node_groups.size(); ++g) {
    const NodeGroup& group = node_groups[g];
    int32_t from_first = node - group.first_node;
    if (from_first < 0) continue;
    if (group.every > 0) from_first %= group.every;
    if (from_first < group.num_nodes) return static_cast<int32_t>(g);
  }
  return -1;
}

absl::Status ValidateClusterSpec(const ClusterSpec& cluster) {
  const Refusal fail(cluster);
  const struct {
    const char* field;
    double value;
  } positive[] = {
      {"num_nodes", static_cast<double>(cluster.num_nodes)},
      {"gpus_per_node", static_cast<double>(cluster.gpus_per_node)},
      {"intra_node.bandwidth", cluster.intra_node.bandwidth.bytes_per_second},
      {"inter_node.bandwidth", cluster.inter_node.bandwidth.bytes_per_second},
  };
  for (const auto& p : positive) {
    if (!(p.value > 0)) return fail(p.field, p.value, "> 0");
  }
  PIPELOOM_RETURN_IF_ERROR(CheckDevice(cluster.device, "device.", fail));
  for (const auto& [field, link] :
       {std::pair{"intra_node.latency", &cluster.intra_node},
        {"inter_node.latency", &cluster.inter_node}}) {
    if (link->latency < kZero) {
      return fail(field, static_cast<double>(link->latency.count()), ">= 0");
    }
  }
  PIPELOOM_RETURN_IF_ERROR(CheckDomain(cluster, fail));
  if (cluster.nics_per_node < 0 ||
      (cluster.nics_per_node > 0 &&
       cluster.gpus_per_node % cluster.nics_per_node != 0)) {
    return fail("nics_per_node", cluster.nics_per_node,
                absl::StrFormat("0 or a divisor of gpus_per_node, %d",
                                cluster.gpus_per_node));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckGroups(cluster, fail));
  PIPELOOM_RETURN_IF_ERROR(CheckSlow(cluster, fail));
  for (const auto& [field, share] :
       {std::pair{"jitter.compute", cluster.jitter.compute},
        {"jitter.links", cluster.jitter.links}}) {
    if (!(share >= 0 && share <= 1)) return fail(field, share, "in [0, 1]");
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
