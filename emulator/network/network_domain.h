// The number of GPUs that a tensor-parallel job can use when nodes of a cluster
// are faulty, by the high-bandwidth domain (HBD) that joins the GPUs: the model
// behind the comparison of InfinitePOD (arXiv 2502.03885, printed later as
// InfiniteHBD) with 8-GPU islands, NVL-72 and TPUv4.
//
// N nodes of g GPUs each, T GPUs in a group, faults of whole nodes. A group
// lies in one HBD, and a GPU is usable if it is in a whole group:
//
//   usable = the most GPUs that whole groups can cover at once, exactly
//   wasted = N g - faulty - usable              healthy, in no group
//   waste ratio = wasted / (N g)     MFU scale = usable / (N g)
//
//   kNode     an HBD is one node: usable = floor(g / T) T per healthy node.
//   kSwitch   all to all in each run of D GPUs (NVL-72: 72), the last of which
//             may be shorter: a domain with h healthy GPUs wastes h mod T.
//   kCube     the GPUs come in cubes of D (TPUv4: 4 x 4 x 4 = 64). A fault
//             breaks its cube, whose other GPUs are wasted, and so does a
//             missing node at the end. Up to T = D a cube holds floor(D / T)
//             groups; above, a group takes ceil(T / D) healthy cubes, which
//             optical switches join wherever they are.
//   kHopRing  nodes on a ring, each linked to the K next on either side, which
//             skips up to K - 1 consecutive faults; K or more of them are a
//             break. Two or more breaks cut the ring into arcs; with one or
//             none there is a single arc. Above T = g a group is a path over
//             m = ceil(T / g) whole nodes, closed to a ring in its end nodes:
//             floor(h / m) groups on an arc of h healthy nodes. That is exact:
//             consecutive nodes reach the bound of every packing. Up to
//             T = g it is kNode.
//
// Without a fault: kSwitch over everything wastes N g mod T, kHopRing (N mod m)
// g if g divides T. With one fault: kCube wastes D - g of its cube, kSwitch (D
// - g) mod T of its domain.
//
// Left out: faults of links, switches and single GPUs, the bandwidth that a
// detour or a larger group costs, slices of a broken cube, shapes of a torus,
// the placement of groups in the data-centre network. MFU scale compares
// clusters at one T: it has no gain from a larger one.
//
// Pure functions; thread-safe.
#ifndef PIPELOOM_EMULATOR_NETWORK_NETWORK_DOMAIN_H_
#define PIPELOOM_EMULATOR_NETWORK_NETWORK_DOMAIN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/job/cluster_spec.h"

namespace pipeloom::emulator {

using pipeloom::DomainKind;

// The kind and size of the high-bandwidth domains.
struct NetworkDomain {
  DomainKind kind = DomainKind::kNode;
  // For kSwitch and kCube: GPUs in a domain, D; a multiple of gpus_per_node.
  int64_t domain_gpus = 0;
  // For kHopRing: reach of a node in nodes, K; at least 1.
  int64_t hops = 0;

  static NetworkDomain Node() { return {}; }
  static NetworkDomain Switch(int64_t gpus) {
    return {DomainKind::kSwitch, gpus, 0};
  }
  static NetworkDomain Cube(int64_t gpus = 64) {
    return {DomainKind::kCube, gpus, 0};
  }
  static NetworkDomain HopRing(int64_t hops) {
    return {DomainKind::kHopRing, 0, hops};
  }
};

// A job on a cluster with faulty nodes.
struct DomainJob {
  int64_t num_nodes = 0;      // N, up to 10'000'000.
  int64_t gpus_per_node = 8;  // g, up to 1024.
  int64_t group_gpus = 8;     // T.
};

// The GPUs that a job can use, and those it wastes.
struct DomainUse {
  int64_t total_gpus = 0;
  int64_t faulty_gpus = 0;
  int64_t usable_gpus = 0;

  int64_t wasted_gpus() const { return total_gpus - faulty_gpus - usable_gpus; }
  double waste_ratio() const {
    return static_cast<double>(wasted_gpus()) / static_cast<double>(total_gpus);
  }
  double mfu_scale() const {
    return static_cast<double>(usable_gpus) / static_cast<double>(total_gpus);
  }
};

// Returns the exact use for one set of faulty nodes in any order.
// InvalidArgument names a field out of range, or a faulty node that does not
// exist or occurs twice. O(N) time and bytes.
absl::StatusOr<DomainUse> UseOfDomain(const NetworkDomain& domain,
                                      const DomainJob& job,
                                      absl::Span<const int64_t> faulty_nodes);

// Options of SampleWaste().
struct FaultSampling {
  int64_t num_trials = 1000;  // Up to 1'000'000.
  uint64_t seed = 1;
};

// Results of all trials at one fault ratio. A percentile is the smallest sample
// that so many percent of the samples do not exceed (nearest rank).
struct WasteSample {
  double fault_ratio = 0;  // As requested.
  int64_t num_faulty = 0;  // Nodes: N times the ratio, rounded.
  double mean_waste_ratio = 0;
  double p50_waste_ratio = 0;
  double p90_waste_ratio = 0;
  double p99_waste_ratio = 0;
  double max_waste_ratio = 0;
  double mean_mfu_scale = 0;
};

// Samples the waste by Monte Carlo: each trial has a uniformly random set of
// `num_faulty` nodes. Returns one result for each ratio in [0, 1], in their
// order. The faults of a trial depend only on the seed, the trial and N, and
// those of a smaller ratio are among those of a larger: domains and ratios are
// compared on the same draws. Returns InvalidArgument like UseOfDomain().
// O(ratios * trials * N) time.
absl::StatusOr<std::vector<WasteSample>> SampleWaste(
    const NetworkDomain& domain, const DomainJob& job,
    absl::Span<const double> fault_ratios, const FaultSampling& sampling);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_NETWORK_DOMAIN_H_
