#include "emulator/network/ring_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pipeloom::emulator {
namespace {

struct Protocol {
  double share = 1;      // Share of the bus bandwidth.
  double most_far = 0;   // Bytes per second between nodes; 0: no limit.
  double ring_base = 0;  // us, like all latencies here.
  double ring_nvlink = 0;
  double ring_pcie = 0;
  double ring_network = 0;
  double tree_base = 0;
  double tree_nvlink = 0;
  double tree_pcie = 0;
  double tree_network = 0;
};

constexpr Protocol kProtocols[] = {
    // LL: a flag for each datum, half the bandwidth.
    {0.5, 45e9, 6.6, 0.6, 1.0, 2.7, 6.8, 0.6, 1.0, 5.0},
    // LL128: 120 of 128 bytes are data.
    {0.92, 0, 14.0, 1.9, 2.5, 4.0, 14.0, 1.25, 1.9, 8.5},
    // Simple.
    {1.0, 0, 8.4, 3.4, 5.7, 14.0, 8.4, 4.0, 4.0, 14.0},
};
constexpr double kTreeShare = 0.9;
// Below this bandwidth, the links of a node are PCIe rather than NVLink.
constexpr double kLeastNvlink = 60e9;
// A transfer between nodes takes 17 us at 2 KiB on H100 (vidur).
constexpr double kFarTransferUs = 15;
constexpr double kNearTransferUs = 5;
constexpr double kPeerUs = 0.25;

// Bytes of a step of NCCL's buffers, which are filled in eight steps
// (src/include/device.h): LL and LL128.
constexpr double kStepLl = 65536;
constexpr double kStepLl128 = 614400;
// Smallest broadcast that takes LL128, bytes.
constexpr double kLeastLl128 = 1 << 20;

double Log2(double x) { return std::log2(std::max(x, 1.0)); }

// Returns the latency of a step in microseconds.
double Latency(double us, double extra) { return std::max(us + extra, 0.0); }

double PointToPoint(double bytes, bool far, const RingLinks& links) {
  return far ? Latency(kFarTransferUs, links.nic_extra_us) * 1e-6 +
                   bytes / links.nic_bytes_per_second
             : Latency(kNearTransferUs, links.node_extra_us) * 1e-6 +
                   bytes / links.node_bytes_per_second;
}

double AllToAll(double bytes, double n, double g, const RingLinks& links) {
  const double leaves = bytes * (n - g) / n;
  const double stays = bytes * (g - 1) / n;
  double wire = 0;
  if (leaves > 0) wire = leaves / links.nic_bytes_per_second;
  if (stays > 0) wire = std::max(wire, stays / links.node_bytes_per_second);
  const Protocol& simple = kProtocols[2];
  const double step = leaves > 0
                          ? Latency(simple.ring_network, links.nic_extra_us)
                          : links.node_extra_us;
  const double us = std::max(simple.ring_base + step, 0.0) + kPeerUs * (n - 1);
  return us * 1e-6 + wire;
}

}  // namespace

double WireShare(OpType op, int64_t ranks) {
  if (op == OpType::kSendRecv) return 1;
  const auto n = static_cast<double>(std::max<int64_t>(ranks, 1));
  return (op == OpType::kAllReduce ? 2 : 1) * (n - 1) / n;
}

double RingModelSeconds(OpType op, double bytes, const RingGroup& group,
                        const RingLinks& links) {
  if (group.ranks <= 1 || bytes <= 0) return 0;
  const auto n = static_cast<double>(group.ranks);
  const double g = static_cast<double>(
      std::clamp<int64_t>(group.ranks_per_node, 1, group.ranks));
  const double nodes = std::ceil(n / g);
  const bool far = nodes > 1;
  if (op == OpType::kSendRecv) return PointToPoint(bytes, far, links);
  if (op == OpType::kAllToAll) return AllToAll(bytes, n, g, links);

  double bus = std::numeric_limits<double>::infinity();
  if (g > 1) bus = links.node_bytes_per_second;
  if (far) bus = std::min(bus, g * links.nic_bytes_per_second);
  const bool pcie = links.node_bytes_per_second < kLeastNvlink;
  const double rounds = op == OpType::kAllReduce ? 2 : 1;
  const double far_steps = rounds * (nodes - 1);
  const double near_steps = rounds * (n - 1) - far_steps;
  double best = std::numeric_limits<double>::infinity();
  for (const Protocol& p : kProtocols) {
    double rate = bus * p.share;
    if (far && p.most_far > 0) rate = std::min(rate, p.most_far);
    const double ring_us =
        p.ring_base +
        near_steps *
            Latency(pcie ? p.ring_pcie : p.ring_nvlink, links.node_extra_us) +
        far_steps * Latency(p.ring_network, links.nic_extra_us);
    best = std::min(best,
                    ring_us * 1e-6 + bytes * WireShare(op, group.ranks) / rate);
    if (op != OpType::kAllReduce) continue;
    const double tree_us =
        p.tree_base +
        2 * (g - 1) *
            Latency(pcie ? p.tree_pcie : p.tree_nvlink, links.node_extra_us) +
        2 * Log2(nodes) * Latency(p.tree_network, links.nic_extra_us);
    best = std::min(best, tree_us * 1e-6 + 2 * bytes / (rate * kTreeShare));
  }
  return best;
}

double BroadcastWaitSeconds(double bytes, const RingGroup& group,
                            const RingLinks& links) {
  if (group.ranks <= 1 || bytes <= 0) return 0;
  const auto n = static_cast<double>(group.ranks);
  const double g = static_cast<double>(
      std::clamp<int64_t>(group.ranks_per_node, 1, group.ranks));
  const double nodes = std::ceil(n / g);
  const bool small = bytes < kLeastLl128;
  const Protocol& p = kProtocols[small ? 0 : 1];
  const bool pcie = links.node_bytes_per_second < kLeastNvlink;
  const double us = p.ring_base +
                    (n - nodes) * Latency(pcie ? p.ring_pcie : p.ring_nvlink,
                                          links.node_extra_us) +
                    (nodes - 1) * Latency(p.ring_network, links.nic_extra_us);
  if (nodes <= 1) return us * 1e-6;
  const double block = std::min(small ? kStepLl : kStepLl128, bytes / g);
  return us * 1e-6 + (nodes - 1) * block / links.nic_bytes_per_second;
}

}  // namespace pipeloom::emulator
