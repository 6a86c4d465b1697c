#include "emulator/network/collective_profile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "emulator/network/ring_model.h"

namespace pipeloom::emulator {
namespace {

// Difference of logarithms below which sizes count as equal.
constexpr double kSameSize = 1e-12;

double Between(double x, double x0, double x1, double y0, double y1) {
  return y0 + (x - x0) / (x1 - x0) * (y1 - y0);
}

// Up to this size, 64 KiB, the time of a smallest size is all latency.
const double kLatencyOnly = std::log(65536.5);

// Extrapolates beyond the last point at the bandwidth of the bytes between it
// and the last point of at most half its size; at most twice the last point's
// own.
double Above(const std::vector<double>& x, const std::vector<double>& y,
             double bytes) {
  const double last_bytes = std::exp(x.back());
  const double last = std::exp(y.back());
  double slope = last / last_bytes;
  const auto half = std::upper_bound(x.begin(), x.end(),
                                     x.back() - std::log(2.0) + kSameSize);
  if (half != x.begin()) {
    const auto i = static_cast<size_t>(half - x.begin()) - 1;
    const double between =
        (last - std::exp(y[i])) / (last_bytes - std::exp(x[i]));
    slope = std::clamp(between, slope / 2, slope);
  }
  return last + slope * (bytes - last_bytes);
}

}  // namespace

CollectiveCosts::CollectiveCosts(const CollectiveProfile& profile)
    : nic_bytes_per_second_(profile.nic_bytes_per_second),
      node_bytes_per_second_(profile.node_bytes_per_second),
      gpus_per_node_(profile.gpus_per_node) {
  for (const CollectiveCurve& from : profile.curves) {
    Curve curve;
    curve.ranks = from.ranks;
    for (size_t i = 0; i < from.bytes.size(); ++i) {
      curve.log_bytes.push_back(std::log(static_cast<double>(from.bytes[i])));
      curve.log_seconds.push_back(std::log(from.us[i] * 1e-6));
      curve.estimated.push_back(std::binary_search(
          from.estimated.begin(), from.estimated.end(), from.bytes[i]));
    }
    curves_[static_cast<size_t>(from.op)][from.span == QuerySpan::kNode ? 0 : 1]
        .push_back(std::move(curve));
  }
}

CollectiveTime CollectiveCosts::At(const Curve& curve, OpType op,
                                   double log_bytes) {
  const std::vector<double>& x = curve.log_bytes;
  const std::vector<double>& y = curve.log_seconds;
  const auto next = std::lower_bound(x.begin(), x.end(), log_bytes - kSameSize);
  const auto i = static_cast<size_t>(next - x.begin());
  if (next != x.end() && *next <= log_bytes + kSameSize) {
    return {y[i], curve.estimated[i] ? CollectiveSource::kInterpolated
                                     : CollectiveSource::kMeasured};
  }
  if (i == 0) {
    if (x[0] <= kLatencyOnly) return {y[0], CollectiveSource::kInterpolated};
    const RingLinks links{LastBandwidth(curve, op), LastBandwidth(curve, op)};
    const RingGroup group{curve.ranks, curve.ranks};
    const double ratio =
        RingModelSeconds(op, std::exp(log_bytes), group, links) /
        RingModelSeconds(op, std::exp(x[0]), group, links);
    return {y[0] + std::log(ratio), CollectiveSource::kInterpolated};
  }
  if (next == x.end()) {
    return {std::log(Above(x, y, std::exp(log_bytes))),
            CollectiveSource::kInterpolated};
  }
  return {Between(log_bytes, x[i - 1], x[i], y[i - 1], y[i]),
          CollectiveSource::kInterpolated};
}

double CollectiveCosts::LastBandwidth(const Curve& curve, OpType op) {
  return std::exp(curve.log_bytes.back() - curve.log_seconds.back()) *
         WireShare(op, curve.ranks);
}

double CollectiveCosts::BusBandwidth(OpType op, int64_t ranks) const {
  const std::vector<Curve>& curves = Curves(op, QuerySpan::kNode);
  if (curves.empty()) return node_bytes_per_second_;
  for (const Curve& curve : curves) {
    if (curve.ranks >= ranks) return LastBandwidth(curve, op);
  }
  return LastBandwidth(curves.back(), op);
}

CollectiveTime CollectiveCosts::Beyond(const std::vector<Curve>& curves,
                                       OpType op, double bytes,
                                       int64_t ranks) const {
  const Curve& last = curves.back();
  const double log_bytes = std::log(bytes);
  const double at_last = std::exp(At(last, op, log_bytes).seconds);
  const double wire = bytes *
                      (WireShare(op, ranks) - WireShare(op, last.ranks)) /
                      LastBandwidth(last, op);
  double latency = 0;
  if (curves.size() > 1) {
    const Curve& before = curves[curves.size() - 2];
    const double step = std::exp(last.log_seconds.front()) -
                        std::exp(before.log_seconds.front());
    latency = std::max(step, 0.0) *
              std::log2(static_cast<double>(ranks) /
                        static_cast<double>(last.ranks)) /
              std::log2(static_cast<double>(last.ranks) /
                        static_cast<double>(before.ranks));
  }
  return {at_last + wire + latency, CollectiveSource::kInterpolated};
}

CollectiveTime CollectiveCosts::InNode(OpType op, double bytes,
                                       int64_t ranks) const {
  const std::vector<Curve>& curves = Curves(op, QuerySpan::kNode);
  if (curves.empty()) {
    if (op == OpType::kAllReduce &&
        !Curves(OpType::kAllGather, QuerySpan::kNode).empty() &&
        !Curves(OpType::kReduceScatter, QuerySpan::kNode).empty()) {
      return {InNode(OpType::kReduceScatter, bytes, ranks).seconds +
                  InNode(OpType::kAllGather, bytes, ranks).seconds,
              CollectiveSource::kInterpolated};
    }
    const RingLinks links{node_bytes_per_second_, nic_bytes_per_second_};
    return {RingModelSeconds(op, bytes, {ranks, ranks}, links),
            CollectiveSource::kModel};
  }
  if (op == OpType::kSendRecv) ranks = curves.front().ranks;
  const double log_bytes = std::log(bytes);
  size_t i = 0;
  while (i < curves.size() && curves[i].ranks < ranks) ++i;
  if (i == curves.size()) return Beyond(curves, op, bytes, ranks);
  CollectiveTime time = At(curves[i], op, log_bytes);
  if (curves[i].ranks == ranks) {
    return {std::exp(time.seconds), time.source};
  }
  time.source = CollectiveSource::kInterpolated;
  if (i == 0) {
    // Smaller than any measured group: scaled by the wire share.
    return {std::exp(time.seconds) * WireShare(op, ranks) /
                WireShare(op, curves[0].ranks),
            time.source};
  }
  const auto log = [](int64_t n) { return std::log(static_cast<double>(n)); };
  return {std::exp(Between(
              log(ranks), log(curves[i - 1].ranks), log(curves[i].ranks),
              At(curves[i - 1], op, log_bytes).seconds, time.seconds)),
          time.source};
}

int64_t CollectiveCosts::PerNode(const CollectiveQuery& query) const {
  if (query.span == QuerySpan::kNode) return query.ranks;
  if (query.op == OpType::kSendRecv) return 1;
  if (query.ranks_per_node > 0) return query.ranks_per_node;
  return query.ranks > gpus_per_node_ ? gpus_per_node_ : 1;
}

CollectiveTime CollectiveCosts::Time(const CollectiveQuery& query) const {
  if (query.ranks <= 1 || query.bytes <= 0) {
    return {0, CollectiveSource::kModel};
  }
  if (query.span == QuerySpan::kNode) {
    return InNode(query.op, query.bytes, query.ranks);
  }
  const int64_t per_node = PerNode(query);
  if (per_node == 1) {
    for (const Curve& curve : Curves(query.op, QuerySpan::kInterNode)) {
      if (curve.ranks != query.ranks && query.op != OpType::kSendRecv) continue;
      const CollectiveTime time = At(curve, query.op, std::log(query.bytes));
      return {std::exp(time.seconds), time.source};
    }
  }
  const RingLinks links{BusBandwidth(query.op, per_node),
                        nic_bytes_per_second_};
  return {
      RingModelSeconds(query.op, query.bytes, {query.ranks, per_node}, links),
      CollectiveSource::kModel};
}

double CollectiveCosts::LatencyChange(const CollectiveQuery& query,
                                      double node_us, double nic_us) const {
  if (query.ranks <= 1 || query.bytes <= 0) return 0;
  const bool inside = query.span == QuerySpan::kNode;
  if ((inside || nic_us == 0) && node_us == 0) return 0;
  const int64_t per_node = PerNode(query);
  const RingGroup group{query.ranks, per_node};
  RingLinks links{
      inside ? node_bytes_per_second_ : BusBandwidth(query.op, per_node),
      nic_bytes_per_second_};
  const double before = RingModelSeconds(query.op, query.bytes, group, links);
  if (!std::isfinite(before)) return 0;
  links.node_extra_us = node_us;
  links.nic_extra_us = nic_us;
  return RingModelSeconds(query.op, query.bytes, group, links) - before;
}

bool CollectiveCosts::CanPrice(const CollectiveQuery& query) const {
  const double seconds = Time(query).seconds;
  return std::isfinite(seconds);
}

double OverlappedSeconds(double compute, double communication,
                         double compute_slowdown,
                         double communication_slowdown) {
  const double slow_compute = compute * compute_slowdown;
  const double slow_communication = communication * communication_slowdown;
  // The one that ends first was slowed down all the time; the other did its
  // share of work until then and continues at full speed.
  if (slow_compute <= slow_communication) {
    return slow_compute + communication - slow_compute / communication_slowdown;
  }
  return slow_communication + compute - slow_communication / compute_slowdown;
}

}  // namespace pipeloom::emulator
