#include "studies/whatif/infrastructure.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "emulator/network/collective_cost.h"

namespace pipeloom::studies {

std::vector<DomainWaste> CompareDomains(const JobSpec& job, int64_t nodes) {
  using emulator::NetworkDomain;
  const int64_t per_node = job.cluster.gpus_per_node;
  const std::pair<std::string, NetworkDomain> kinds[] = {
      {"a node", NetworkDomain::Node()},
      {"a switch of 72", NetworkDomain::Switch(72 / per_node * per_node)},
      {"cubes of 64", NetworkDomain::Cube(64)},
      {"a ring of nodes, 2 hops", NetworkDomain::HopRing(2)},
      {"a ring of nodes, 3 hops", NetworkDomain::HopRing(3)}};
  const double ratios[] = {0, 0.01, 0.02, 0.05, 0.1};
  std::vector<DomainWaste> domains;
  for (const auto& [name, domain] : kinds) {
    const emulator::DomainJob shape{.num_nodes = nodes,
                                    .gpus_per_node = per_node,
                                    .group_gpus = job.parallel.gpus_per_rank()};
    absl::StatusOr<std::vector<emulator::WasteSample>> samples =
        emulator::SampleWaste(domain, shape, ratios,
                              {.num_trials = 300, .seed = 1});
    DomainWaste& waste = domains.emplace_back();
    waste.domain = name;
    waste.status = samples.status();
    if (samples.ok()) waste.samples = *std::move(samples);
  }
  return domains;
}

std::vector<GradientReduction> CompareCompression(const JobSpec& job,
                                                  int64_t parameters,
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
  std::vector<GradientReduction> results;
  results.push_back({.gradients = "exact, 32 bit", .reduction = reduce(bytes)});
  const std::pair<std::string, double> ratios[] = {{"16 bit", 0.5},
                                                   {"8 bit", 0.25},
                                                   {"4 bit", 0.125},
                                                   {"1 % of them", 0.02},
                                                   {"0.1 % of them", 0.002}};
  for (const auto& [name, ratio] : ratios) {
    const Duration coding = Seconds(2 * bytes * (1 + ratio) / memory);
    // 2 (n-1)/n G (1 - ratio) / b = coding, solved for b.
    const double n = static_cast<double>(replicas);
    results.push_back({.gradients = name,
                       .reduction = reduce(bytes * ratio),
                       .coding = coding,
                       .pays_below = 2 * (n - 1) / n * bytes * (1 - ratio) /
                                     std::max(1e-12, ToSeconds(coding))});
  }
  return results;
}

}  // namespace pipeloom::studies
