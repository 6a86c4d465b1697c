#include "emulator/network/network_domain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace pipeloom::emulator {
namespace {

constexpr int64_t kMaxNodes = 10'000'000;
constexpr int64_t kMaxGpusPerNode = 1024;
constexpr int64_t kMaxTrials = 1'000'000;

// One byte per node, 1 if it is faulty.
using FaultMap = std::vector<uint8_t>;

absl::Status Validate(const NetworkDomain& domain, const DomainJob& job) {
  if (job.num_nodes < 1 || job.num_nodes > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "num_nodes is %d, must be in [1, %d]", job.num_nodes, kMaxNodes));
  }
  if (job.gpus_per_node < 1 || job.gpus_per_node > kMaxGpusPerNode) {
    return absl::InvalidArgumentError(
        absl::StrFormat("gpus_per_node is %d, must be in [1, %d]",
                        job.gpus_per_node, kMaxGpusPerNode));
  }
  if (job.group_gpus < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "group_gpus is %d, must be at least 1", job.group_gpus));
  }
  switch (domain.kind) {
    case DomainKind::kNode:
      return absl::OkStatus();
    case DomainKind::kSwitch:
    case DomainKind::kCube:
      if (domain.domain_gpus < 1 ||
          domain.domain_gpus % job.gpus_per_node != 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "domain_gpus is %d, must be a positive multiple of gpus_per_node, "
            "%d",
            domain.domain_gpus, job.gpus_per_node));
      }
      return absl::OkStatus();
    case DomainKind::kHopRing:
      if (domain.hops < 1) {
        return absl::InvalidArgumentError(
            absl::StrFormat("hops is %d, must be at least 1", domain.hops));
      }
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "kind is %d, must be a DomainKind", static_cast<int>(domain.kind)));
}

// Returns how many of `gpus` are in whole groups of `group`.
int64_t WholeGroups(int64_t gpus, int64_t group) { return gpus - gpus % group; }

// Returns the ratio rounded up, for positive values of any size.
int64_t CeilOfRatio(int64_t a, int64_t b) { return (a - 1) / b + 1; }

int64_t NodeUsable(const DomainJob& job, const FaultMap& faulty) {
  const int64_t healthy = std::count(faulty.begin(), faulty.end(), 0);
  return healthy * WholeGroups(job.gpus_per_node, job.group_gpus);
}

// Calls visit(number of nodes, number of healthy ones) for each domain.
template <typename Visit>
void ForEachDomain(const FaultMap& faulty, int64_t nodes_per_domain,
                   Visit visit) {
  const auto num_nodes = static_cast<int64_t>(faulty.size());
  for (int64_t first = 0; first < num_nodes;) {
    const int64_t size = std::min(nodes_per_domain, num_nodes - first);
    const auto begin = faulty.begin() + first;
    visit(size, std::count(begin, begin + size, 0));
    first += size;
  }
}

int64_t SwitchUsable(int64_t domain_gpus, const DomainJob& job,
                     const FaultMap& faulty) {
  int64_t usable = 0;
  ForEachDomain(
      faulty, domain_gpus / job.gpus_per_node, [&](int64_t, int64_t healthy) {
        usable += WholeGroups(healthy * job.gpus_per_node, job.group_gpus);
      });
  return usable;
}

int64_t CubeUsable(int64_t cube_gpus, const DomainJob& job,
                   const FaultMap& faulty) {
  const int64_t nodes_per_cube = cube_gpus / job.gpus_per_node;
  int64_t whole_cubes = 0;
  ForEachDomain(faulty, nodes_per_cube, [&](int64_t, int64_t healthy) {
    if (healthy == nodes_per_cube) ++whole_cubes;
  });
  if (job.group_gpus <= cube_gpus) {
    return whole_cubes * WholeGroups(cube_gpus, job.group_gpus);
  }
  const int64_t groups = whole_cubes / CeilOfRatio(job.group_gpus, cube_gpus);
  return groups * job.group_gpus;
}

int64_t HopRingUsable(int64_t hops, const DomainJob& job,
                      const FaultMap& faulty) {
  if (job.group_gpus <= job.gpus_per_node) return NodeUsable(job, faulty);
  const int64_t nodes_per_group =
      CeilOfRatio(job.group_gpus, job.gpus_per_node);
  // One turn that starts just after a healthy node, and so ends at it, so that
  // every run of faults is in one piece.
  const auto last = std::find(faulty.rbegin(), faulty.rend(), 0);
  if (last == faulty.rend()) return 0;
  const auto start = static_cast<size_t>(faulty.rend() - last);
  int64_t groups = 0;
  int64_t arc = 0;  // Healthy nodes since the latest break.
  // Those before the first break; they are joined with the last ones, since the
  // turn began inside an arc.
  int64_t first_arc = 0;
  bool broken = false;
  int64_t run = 0;  // Faults since the latest healthy node.
  for (size_t i = 0; i < faulty.size(); ++i) {
    size_t node = start + i;
    if (node >= faulty.size()) node -= faulty.size();
    if (faulty[node]) {
      ++run;
      continue;
    }
    if (run >= hops) {
      if (broken) {
        groups += arc / nodes_per_group;
      } else {
        first_arc = arc;
      }
      broken = true;
      arc = 0;
    }
    run = 0;
    ++arc;
  }
  groups += (arc + first_arc) / nodes_per_group;
  return groups * job.group_gpus;
}

// REQUIRES: a valid domain and job, and a map of job.num_nodes.
DomainUse Use(const NetworkDomain& domain, const DomainJob& job,
              const FaultMap& faulty) {
  DomainUse use;
  use.total_gpus = job.num_nodes * job.gpus_per_node;
  use.faulty_gpus =
      std::count(faulty.begin(), faulty.end(), 1) * job.gpus_per_node;
  switch (domain.kind) {
    case DomainKind::kNode:
      use.usable_gpus = NodeUsable(job, faulty);
      break;
    case DomainKind::kSwitch:
      use.usable_gpus = SwitchUsable(domain.domain_gpus, job, faulty);
      break;
    case DomainKind::kCube:
      use.usable_gpus = CubeUsable(domain.domain_gpus, job, faulty);
      break;
    case DomainKind::kHopRing:
      use.usable_gpus = HopRingUsable(domain.hops, job, faulty);
      break;
  }
  PIPELOOM_CHECK(use.usable_gpus >= 0 && use.wasted_gpus() >= 0);
  return use;
}

// Marks the first `count` of a shuffle of `nodes`; a larger count only adds
// more.
void MarkRandomFaults(int64_t count, Random random, std::vector<int64_t>& nodes,
                      FaultMap& faulty) {
  std::iota(nodes.begin(), nodes.end(), int64_t{0});
  std::fill(faulty.begin(), faulty.end(), uint8_t{0});
  const auto num_nodes = static_cast<int64_t>(nodes.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t pick = i + random.Below(num_nodes - i);
    std::swap(nodes[static_cast<size_t>(i)], nodes[static_cast<size_t>(pick)]);
    faulty[static_cast<size_t>(nodes[static_cast<size_t>(i)])] = 1;
  }
}

// Sorts `wasted`, the wasted GPUs of each trial, and returns its statistics.
WasteSample Summary(std::vector<int64_t>& wasted, int64_t total_gpus) {
  std::sort(wasted.begin(), wasted.end());
  const auto trials = static_cast<int64_t>(wasted.size());
  const auto total = static_cast<double>(total_gpus);
  const auto percentile = [&](int64_t percent) {
    const int64_t rank = CeilOfRatio(percent * trials, 100);
    return static_cast<double>(wasted[static_cast<size_t>(rank - 1)]) / total;
  };
  WasteSample sample;
  sample.mean_waste_ratio = static_cast<double>(std::accumulate(
                                wasted.begin(), wasted.end(), int64_t{0})) /
                            static_cast<double>(trials) / total;
  sample.p50_waste_ratio = percentile(50);
  sample.p90_waste_ratio = percentile(90);
  sample.p99_waste_ratio = percentile(99);
  sample.max_waste_ratio = percentile(100);
  return sample;
}

}  // namespace

absl::StatusOr<DomainUse> UseOfDomain(const NetworkDomain& domain,
                                      const DomainJob& job,
                                      absl::Span<const int64_t> faulty_nodes) {
  PIPELOOM_RETURN_IF_ERROR(Validate(domain, job));
  FaultMap faulty(static_cast<size_t>(job.num_nodes), 0);
  for (size_t i = 0; i < faulty_nodes.size(); ++i) {
    const int64_t node = faulty_nodes[i];
    if (node < 0 || node >= job.num_nodes) {
      return absl::InvalidArgumentError(
          absl::StrFormat("faulty_nodes[%d] is %d, must be in [0, %d)", i, node,
                          job.num_nodes));
    }
    if (faulty[static_cast<size_t>(node)]) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "faulty_nodes[%d] is %d, which came before; must be distinct", i,
          node));
    }
    faulty[static_cast<size_t>(node)] = 1;
  }
  return Use(domain, job, faulty);
}

absl::StatusOr<std::vector<WasteSample>> SampleWaste(
    const NetworkDomain& domain, const DomainJob& job,
    absl::Span<const double> fault_ratios, const FaultSampling& sampling) {
  PIPELOOM_RETURN_IF_ERROR(Validate(domain, job));
  if (sampling.num_trials < 1 || sampling.num_trials > kMaxTrials) {
    return absl::InvalidArgumentError(
        absl::StrFormat("num_trials is %d, must be in [1, %d]",
                        sampling.num_trials, kMaxTrials));
  }
  for (size_t i = 0; i < fault_ratios.size(); ++i) {
    if (!(fault_ratios[i] >= 0 && fault_ratios[i] <= 1)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "fault_ratios[%d] is %g, must be in [0, 1]", i, fault_ratios[i]));
    }
  }
  std::vector<int64_t> nodes(static_cast<size_t>(job.num_nodes));
  FaultMap faulty(nodes.size());
  std::vector<int64_t> wasted(static_cast<size_t>(sampling.num_trials));
  const int64_t total_gpus = job.num_nodes * job.gpus_per_node;
  std::vector<WasteSample> samples;
  samples.reserve(fault_ratios.size());
  for (const double ratio : fault_ratios) {
    const int64_t num_faulty =
        std::llround(ratio * static_cast<double>(job.num_nodes));
    Random random(sampling.seed);
    int64_t usable = 0;
    for (int64_t& trial : wasted) {
      MarkRandomFaults(num_faulty, random.Fork(), nodes, faulty);
      const DomainUse use = Use(domain, job, faulty);
      trial = use.wasted_gpus();
      usable += use.usable_gpus;
    }
    WasteSample sample = Summary(wasted, total_gpus);
    sample.fault_ratio = ratio;
    sample.num_faulty = num_faulty;
    sample.mean_mfu_scale = static_cast<double>(usable) /
                            static_cast<double>(sampling.num_trials) /
                            static_cast<double>(total_gpus);
    samples.push_back(sample);
  }
  return samples;
}

}  // namespace pipeloom::emulator
