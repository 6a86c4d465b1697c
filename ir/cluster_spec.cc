#include "ir/cluster_spec.h"

#include "absl/strings/str_format.h"

namespace pipeloom {

absl::Status ValidateClusterSpec(const ClusterSpec& cluster) {
  const auto fail = [&](const char* field, double value, const char* allowed) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cluster \"%s\": %s is %g; it must be %s", cluster.name,
                        field, value, allowed));
  };
  const DeviceSpec& d = cluster.device;
  const struct {
    const char* field;
    double value;
  } positive[] = {
      {"num_nodes", static_cast<double>(cluster.num_nodes)},
      {"gpus_per_node", static_cast<double>(cluster.gpus_per_node)},
      {"device.bf16", d.bf16.flops_per_second},
      {"device.memory", static_cast<double>(d.memory.count())},
      {"device.memory_bandwidth", d.memory_bandwidth.bytes_per_second},
      {"device.host_bandwidth", d.host_bandwidth.bytes_per_second},
      {"intra_node.bandwidth", cluster.intra_node.bandwidth.bytes_per_second},
      {"inter_node.bandwidth", cluster.inter_node.bandwidth.bytes_per_second},
  };
  for (const auto& p : positive) {
    if (!(p.value > 0)) return fail(p.field, p.value, "> 0");
  }
  const struct {
    const char* field;
    double value;
  } non_negative[] = {
      {"device.fp8", d.fp8.flops_per_second},
      {"device.kernel_overhead",
       static_cast<double>(d.kernel_overhead.count())},
      {"intra_node.latency",
       static_cast<double>(cluster.intra_node.latency.count())},
      {"inter_node.latency",
       static_cast<double>(cluster.inter_node.latency.count())},
  };
  for (const auto& p : non_negative) {
    if (!(p.value >= 0)) return fail(p.field, p.value, ">= 0");
  }
  const struct {
    const char* field;
    double value;
  } efficiencies[] = {
      {"device.gemm_efficiency", d.gemm_efficiency},
      {"device.attention_efficiency", d.attention_efficiency},
      {"device.memory_efficiency", d.memory_efficiency},
  };
  for (const auto& p : efficiencies) {
    if (!(p.value > 0 && p.value <= 1))
      return fail(p.field, p.value, "in (0, 1]");
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
