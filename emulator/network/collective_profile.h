// Times of collectives from measured curves, ir/profile/collective_profile.h.
//
// Inside a node, in this order:
//   - a measured point;
//   - between sizes: log-log between the two next to it; below the smallest
//     size its time, if that size is at most 64 KiB, else as ring_model.h
//     shrinks from there; beyond the largest at the bandwidth between the last
//     point and that of half its size;
//   - between group sizes: log-log between the two next to it, at equal bytes;
//     beyond the largest group: its time, plus its time on the wire as the
//     wire share grows, plus as much latency a doubling as the last one took;
//   - all_reduce as reduce_scatter and all_gather, where it has no curve;
//   - the model of ring_model.h at the profile's constants.
// Between nodes: a curve of exactly that group, else the model; its bandwidth
// inside the node is that of the node's measured curve.
#ifndef PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_PROFILE_H_
#define PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_PROFILE_H_

#include <cstdint>
#include <vector>

#include "ir/profile/collective_profile.h"

namespace pipeloom::emulator {

enum class CollectiveSource { kMeasured, kInterpolated, kModel };

struct CollectiveTime {
  double seconds = 0;
  CollectiveSource source = CollectiveSource::kModel;
};

struct CollectiveQuery {
  OpType op = OpType::kAllReduce;
  QuerySpan span = QuerySpan::kNode;
  double bytes = 0;  // Shares need not be whole.
  int64_t ranks = 1;
  // Between nodes: of the group on each; 0: all GPUs of a node, or 1 if the
  // group is no larger than a node.
  int64_t ranks_per_node = 0;
};

// Read-only once made; any number of threads. A look-up is two searches of
// about 20 points.
class CollectiveCosts {
 public:
  // REQUIRES: ValidateCollectiveProfile(profile).ok().
  explicit CollectiveCosts(const CollectiveProfile& profile);

  // 0 for one rank or no bytes. REQUIRES: IsCollective(query.op). Infinite if
  // neither a curve nor a constant covers it: CanPrice() tells.
  CollectiveTime Time(const CollectiveQuery& query) const;
  bool CanPrice(const CollectiveQuery& query) const;

 private:
  struct Curve {
    int64_t ranks = 0;
    std::vector<double> log_bytes{};
    std::vector<double> log_seconds{};
    std::vector<bool> estimated{};
  };
  // Natural logarithm of seconds.
  static CollectiveTime At(const Curve& curve, OpType op, double log_bytes);
  static double LastBandwidth(const Curve& curve, OpType op);
  CollectiveTime InNode(OpType op, double bytes, int64_t ranks) const;
  CollectiveTime Beyond(const std::vector<Curve>& curves, OpType op,
                        double bytes, int64_t ranks) const;
  double BusBandwidth(OpType op, int64_t ranks) const;
  const std::vector<Curve>& Curves(OpType op, QuerySpan span) const {
    return curves_[static_cast<size_t>(op)][span == QuerySpan::kNode ? 0 : 1];
  }

  std::vector<Curve> curves_[kNumOpTypes][2];  // By op, span; by ranks.
  double nic_bytes_per_second_;
  double node_bytes_per_second_;
  int64_t gpus_per_node_;
};

// How long compute and communication take side by side, given how long each
// takes alone: both run slowed down until the shorter is done.
double OverlappedSeconds(double compute, double communication,
                         double compute_slowdown,
                         double communication_slowdown);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_PROFILE_H_
