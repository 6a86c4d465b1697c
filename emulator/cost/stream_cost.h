// Memory-bound operators from measured ones.
//
//   time = (bytes / bandwidth + 2 us) * factor(bytes, width)
//
// The factor is the inverse of the share of the bandwidth that the kernel
// reaches at this size, factor_grid.h. A kind that was not measured uses the
// factor of a similar one (backward that of forward, a gate that of a plain
// activation, permutation and modulation that of a sum).
#ifndef PIPELOOM_EMULATOR_COST_STREAM_COST_H_
#define PIPELOOM_EMULATOR_COST_STREAM_COST_H_

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/fingerprint.h"
#include "emulator/cost/factor_grid.h"
#include "emulator/cost/gemm_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

// Returns the operators whose measurements price a kind, best first.
std::vector<OpType> StreamOpsOf(MemoryKind kind);

// Times of memory-bound operators by a profile. Immutable and thread-safe.
class StreamCosts {
 public:
  // `rates`, `own`: as in gemm_cost.h.
  StreamCosts(const DeviceProfile& profile, const DeviceRates& rates, bool own);

  // Returns the time of an operator; nullopt if no table fits. About 0.1 us.
  std::optional<OpSeconds> Price(const MemoryOp& op) const;

 private:
  static constexpr size_t kPasses = 2;  // Forward, backward.
  // Indexed by operator and pass.
  FactorGrid grids_[kNumOpTypes][kPasses];
  absl::flat_hash_map<Fingerprint, double> points_{};
  DeviceRates rates_;
  bool exact_;
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_STREAM_COST_H_
