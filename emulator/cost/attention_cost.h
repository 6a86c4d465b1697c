// Fused attention from measured calls.
//
// The kernel model with constants c, for b sequences of s tokens and h heads of
// d: a multiprocessor takes one head's block of 128 queries at a time,
//
//   blocks  = b h ceil(s / 128)
//   mean    = FLOPs of a block, keys longer by c.fill; half when causal
//   longest = FLOPs of the last block
//   compute = (max(blocks / multiprocessors - 1, 0) mean + c.tail longest +
//              (1 - c.tail) mean) / (peak / multiprocessors * c.rate[d])
//   memory  = (Q + K + V + output) / (bandwidth * c.memory)
//   model   = (compute^q + memory^q)^(1/q) + c.overhead
//
// with d rounded up to that of the next kernel. The ratio of measurements to
// the model is a factor over (b h, s, d, heads per key), factor_grid.h. The
// backward has a model of its own, attention_backward.h.
#ifndef PIPELOOM_EMULATOR_COST_ATTENTION_COST_H_
#define PIPELOOM_EMULATOR_COST_ATTENTION_COST_H_

#include <array>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "base/fingerprint.h"
#include "emulator/cost/attention_backward.h"
#include "emulator/cost/attention_shape.h"
#include "emulator/cost/factor_grid.h"
#include "emulator/cost/gemm_cost.h"
#include "emulator/ops/op_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

inline constexpr size_t kAttentionConstants = 9;
using AttentionConstants = std::array<double, kAttentionConstants>;

// Returns the seconds of a forward call, without any factor.
double AttentionModelSeconds(const AttentionConstants& constants,
                             const DeviceRates& rates,
                             const AttentionShape& shape);

// Fits the constants to a table. REQUIRES: a valid forward table.
AttentionConstants FitAttention(const AttentionTable& table,
                                const DeviceRates& rates);

// Times of attention by a profile. Immutable and thread-safe.
class AttentionCosts {
 public:
  // Fits the tables that are not fitted yet. `rates` are those of the device to
  // predict for; the profile has those of the device that was measured.
  AttentionCosts(const DeviceProfile& profile, const DeviceRates& rates);

  // Returns the time of a call; nullopt without a forward table. About 0.3 us.
  std::optional<OpSeconds> Price(const AttentionOp& op) const;

 private:
  struct Kind {
    AttentionConstants constants{};
    FactorGrid forward{};
    // Indexed by kernel, that is, by the rounded head dimension.
    std::array<bool, 7> measured{};
  };
  void AddForward(const AttentionTable& table, const DeviceRates& made_with);
  void AddBackward(const DeviceProfile& profile);
  // Returns the kind of this mask, else of the other one; a kind with
  // measurements of the kernel of this head dimension has precedence.
  const Kind* Find(bool causal, double head_dim) const;

  DeviceRates rates_;
  bool exact_;
  // Indexed by mask: causal, full.
  std::array<std::optional<Kind>, 2> kinds_{};
  AttentionBackward backward_{};
  absl::flat_hash_map<Fingerprint, double> points_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_ATTENTION_COST_H_
