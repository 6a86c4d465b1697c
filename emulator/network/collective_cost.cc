#include "emulator/network/collective_cost.h"

#include <algorithm>
#include <cmath>

namespace pipeloom::emulator {
namespace {

constexpr double kKibibyte = 1 << 10;

// Starting a collective costs its link latency once, twice from 256 KiB per GPU
// on (protocols with synchronisation), three times from 16 MiB on (chunks of
// the pipeline being filled). Modelled on NCCL's LL, LL128 and Simple
// protocols; measured all-gathers on 8 H100s (AIConfigurator tables): 14 us at
// 256 KB, 33 us at 4 MB, 209 us at 64 MB.
double StartLatencies(double bytes_per_gpu) {
  if (bytes_per_gpu < 256 * kKibibyte) return 1;
  return bytes_per_gpu < 16384 * kKibibyte ? 2 : 3;
}

// A hop inside a running collective costs only this share of the latency of a
// separate transfer: no launch, no rendezvous.
constexpr double kHopShare = 0.2;

Duration RoundUp(double seconds) {
  return Duration(static_cast<int64_t>(std::ceil(seconds * 1e9)));
}

Duration Total(double volume, double bytes_per_gpu, int64_t gpus,
               const LinkSpec& link) {
  if (gpus <= 1 || volume <= 0) return kZero;
  const double latency = ToSeconds(link.latency);
  const double hops = static_cast<double>(gpus - 1) * kHopShare;
  return RoundUp(latency * (StartLatencies(bytes_per_gpu) + hops) +
                 volume / link.bandwidth.bytes_per_second);
}

}  // namespace

Duration RingCollectiveTime(double bytes, int64_t gpus, const LinkSpec& link) {
  const auto n = static_cast<double>(gpus);
  return Total(bytes * (n - 1) / n, bytes / n, gpus, link);
}

Duration AllToAllTime(double bytes, int64_t gpus, const LinkSpec& link) {
  const auto n = static_cast<double>(gpus);
  return Total(bytes * (n - 1) / n, bytes / n, gpus, link);
}

Duration AllToAllTime(double far_bytes, double near_bytes, int64_t gpus,
                      const LinkSpec& far, const LinkSpec& near) {
  const auto n = static_cast<double>(std::max<int64_t>(gpus, 1));
  return std::max(Total(far_bytes, far_bytes / n, gpus, far),
                  Total(near_bytes, near_bytes / n, gpus, near));
}

Duration RingPassTime(double bytes, int64_t gpus, const LinkSpec& link) {
  if (gpus <= 1 || bytes <= 0) return kZero;
  const auto hops = static_cast<double>(gpus - 1);
  return RoundUp(hops * (ToSeconds(link.latency) +
                         bytes / link.bandwidth.bytes_per_second));
}

}  // namespace pipeloom::emulator
