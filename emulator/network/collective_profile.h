// Times of collectives from measured curves, ir/profile/collective_profile.h.
//
// Inside a node, the first that applies:
// - a measured point;
// - between sizes: log-log between the neighbouring points; below the smallest
//   size its time, if that size is at most 64 KiB, else scaled down as
//   ring_model.h scales; beyond the largest at the bandwidth between the last
//   point and that of half its size;
// - between group sizes: log-log between the neighbouring ones, at equal bytes;
//   beyond the largest group: its time, plus its time on the wire in proportion
//   to the growth of the wire share, plus for each doubling as much latency as
//   the last doubling added;
// - all_reduce as reduce_scatter and all_gather, if it has no curve;
// - the model of ring_model.h with the profile's constants.
//
// Between nodes: a curve of exactly that group, else the model; its bandwidth
// inside the node is that of the node's measured curve.
#ifndef PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_PROFILE_H_
#define PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_PROFILE_H_

#include <cstdint>
#include <vector>

#include "ir/profile/collective_profile.h"

namespace pipeloom::emulator {

// The source of a time, best first.
enum class CollectiveSource { kMeasured, kInterpolated, kModel };

// The time of a collective with its source.
struct CollectiveTime {
  double seconds = 0;
  CollectiveSource source = CollectiveSource::kModel;
};

// A collective on a group.
struct CollectiveQuery {
  OpType op = OpType::kAllReduce;
  QuerySpan span = QuerySpan::kNode;
  double bytes = 0;  // Fractional, as shares need not be whole.
  int64_t ranks = 1;
  // Between nodes: members of the group on each node; 0: all GPUs of a node, or
  // 1 if the group is no larger than a node.
  int64_t ranks_per_node = 0;
};

// Times of collectives by a profile. Immutable and thread-safe. A look-up is
// two searches of about 20 points.
class CollectiveCosts {
 public:
  // REQUIRES: ValidateCollectiveProfile(profile).ok().
  explicit CollectiveCosts(const CollectiveProfile& profile);

  // Returns the time of a collective; 0 for one rank or no bytes, infinite if
  // CanPrice() is false. REQUIRES: IsCollective(query.op).
  CollectiveTime Time(const CollectiveQuery& query) const;
  // Returns by how many seconds the time of the query changes if steps inside a
  // node take `node_us` microseconds longer and steps between nodes `nic_us`,
  // negative for shorter ones. REQUIRES: as Time().
  double LatencyChange(const CollectiveQuery& query, double node_us,
                       double nic_us) const;
  // Returns whether a curve or a constant covers the query.
  bool CanPrice(const CollectiveQuery& query) const;

 private:
  struct Curve {
    int64_t ranks = 0;
    std::vector<double> log_bytes{};
    std::vector<double> log_seconds{};
    std::vector<bool> estimated{};
  };
  // Returns the natural logarithm of seconds, as `seconds`.
  static CollectiveTime At(const Curve& curve, OpType op, double log_bytes);
  static double LastBandwidth(const Curve& curve, OpType op);
  CollectiveTime InNode(OpType op, double bytes, int64_t ranks) const;
  CollectiveTime Beyond(const std::vector<Curve>& curves, OpType op,
                        double bytes, int64_t ranks) const;
  // Returns the members of the query's group on each of its nodes.
  int64_t PerNode(const CollectiveQuery& query) const;
  double BusBandwidth(OpType op, int64_t ranks) const;
  const std::vector<Curve>& Curves(OpType op, QuerySpan span) const {
    return curves_[static_cast<size_t>(op)][span == QuerySpan::kNode ? 0 : 1];
  }

  // Indexed by op and span; sorted by ranks.
  std::vector<Curve> curves_[kNumOpTypes][2];
  double nic_bytes_per_second_;
  double node_bytes_per_second_;
  int64_t gpus_per_node_;
};

// Returns how long compute and communication take together, given the time of
// each alone: both run slowed down until the shorter is done.
double OverlappedSeconds(double compute, double communication,
                         double compute_slowdown,
                         double communication_slowdown);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_PROFILE_H_
