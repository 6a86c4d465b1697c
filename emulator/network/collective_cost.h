// Latency and bandwidth of collectives on n GPUs.
//
//   ring of n GPUs:  t = base(S) + (n - 1) * hop + S * (n - 1) / n / bandwidth
//
// S is the size of the whole tensor. Small tensors use a low-latency protocol;
// `base` grows in three regimes of S/n, see collective_cost.cc.
// protocol; `base` grows in three regimes of S/n, see collective_cost.cc.
#ifndef PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_COST_H_
#define PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_COST_H_

#include <cstdint>

#include "base/units.h"
#include "ir/job/cluster_spec.h"

namespace pipeloom::emulator {

// The functions return 0 for one GPU or no bytes. `bytes` is a floating-point
// number, as shares of GPUs need not be whole.

// Returns the time of an all-gather or reduce-scatter of a tensor whose
// gathered size is `bytes`.
Duration RingCollectiveTime(double bytes, int64_t gpus, const LinkSpec& link);
// Returns the time of an all-to-all in which each GPU sends `bytes`, an equal
// part to each GPU (one to itself).
Duration AllToAllTime(double bytes, int64_t gpus, const LinkSpec& link);
// Returns the time of an all-to-all in which each of `gpus` GPUs sends
// `far_bytes` over `far` and, at the same time, `near_bytes` over `near`.
Duration AllToAllTime(double far_bytes, double near_bytes, int64_t gpus,
                      const LinkSpec& far, const LinkSpec& near);
// Returns the time of gpus - 1 hops of `bytes` each.
Duration RingPassTime(double bytes, int64_t gpus, const LinkSpec& link);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_NETWORK_COLLECTIVE_COST_H_
