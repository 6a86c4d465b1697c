#include "cli/studies/whatif_tables.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/network/collective_cost.h"
#include "emulator/network/network_domain.h"

namespace pipeloom::cli {

absl::StatusOr<Table> DomainTable(const JobSpec& job, double mfu,
                                  int64_t nodes) {
  using emulator::NetworkDomain;
  const int64_t per_node = job.cluster.gpus_per_node;
  const std::pair<std::string, NetworkDomain> kinds[] = {
      {"a node", NetworkDomain::Node()},
      {"a switch of 72", NetworkDomain::Switch(72 / per_node * per_node)},
      {"cubes of 64", NetworkDomain::Cube(64)},
      {"a ring of nodes, 2 hops", NetworkDomain::HopRing(2)},
      {"a ring of nodes, 3 hops", NetworkDomain::HopRing(3)}};
  const double ratios[] = {0, 0.01, 0.02, 0.05, 0.1};
  Table table({"domain", "faulty nodes", "wasted GPUs", "99 % of cases below",
               "usable", "MFU of the cluster"});
  for (const auto& [name, domain] : kinds) {
    const emulator::DomainJob shape{.num_nodes = nodes,
                                    .gpus_per_node = per_node,
                                    .group_gpus = job.parallel.gpus_per_rank()};
    absl::StatusOr<std::vector<emulator::WasteSample>> samples =
        emulator::SampleWaste(domain, shape, ratios,
                              {.num_trials = 300, .seed = 1});
    if (!samples.ok()) {
      table.AddRow({name, std::string(samples.status().message())});
      continue;
    }
    for (const emulator::WasteSample& sample : *samples) {
      table.AddRow({name, FormatPercent(sample.fault_ratio, 0),
                    FormatPercent(sample.mean_waste_ratio, 2),
                    FormatPercent(sample.p99_waste_ratio, 2),
                    FormatPercent(sample.mean_mfu_scale),
                    FormatPercent(sample.mean_mfu_scale * mfu)});
    }
  }
  return table;
}

Table CompressionTable(const JobSpec& job, int64_t parameters,
                       int64_t replicas) {
  const LinkSpec& link =
      replicas * job.parallel.gpus_per_rank() > job.cluster.gpus_per_node
          ? job.cluster.inter_node
          : job.cluster.intra_node;
  const double bytes = 4.0 * static_cast<double>(parameters);
  const DeviceSpec& device = job.cluster.device;
  const double memory =
      device.memory_bandwidth.bytes_per_second * device.memory_efficiency;
  const auto reduce = [&](double size) {
    return emulator::RingCollectiveTime(size, replicas, link) * 2;
  };
  const Duration exact = reduce(bytes);
  Table table(
      {"gradients", "reduction", "coding", "together", "saved", "pays below"});
  table.AddRow({"exact, 32 bit", FormatDuration(exact), "-",
                FormatDuration(exact), "-", "-"});
  const std::pair<std::string, double> ratios[] = {{"16 bit", 0.5},
                                                   {"8 bit", 0.25},
                                                   {"4 bit", 0.125},
                                                   {"1 % of them", 0.02},
                                                   {"0.1 % of them", 0.002}};
  for (const auto& [name, ratio] : ratios) {
    const Duration coding = Seconds(2 * bytes * (1 + ratio) / memory);
    const Duration reduction = reduce(bytes * ratio);
    const Duration sum = coding + reduction;
    // 2 (n-1)/n G (1 - ratio) / b = coding, solved for b.
    const double n = static_cast<double>(replicas);
    const double pays = 2 * (n - 1) / n * bytes * (1 - ratio) /
                        std::max(1e-12, ToSeconds(coding)) / 1e9;
    table.AddRow({name, FormatDuration(reduction), FormatDuration(coding),
                  FormatDuration(sum), FormatDuration(exact - sum),
                  absl::StrFormat("%.0f GB/s", pays)});
  }
  return table;
}

}  // namespace pipeloom::cli
