// Fused attention from measured calls.
//
// The kernel model with constants c, for b sequences of s tokens, h heads and
// k key heads of d: a multiprocessor takes a block of 128 queries at a time,
// which are those of the g = h / k heads of a key head,
//
//   blocks  = b k ceil(g s / 128)
//   key     = time of one key of a block: its products at
//             peak / multiprocessors * c.rate[d] and its 128 exponentials at
//             16 a cycle * c.exponentials, which overlap where products are
//             asynchronous (multiprocessor.h) and add up elsewhere
//   mean    = key * (keys that a block sees, longer by c.fill) + c.block
//   longest = the same of the last block
//   compute = max(blocks / multiprocessors - 1, 0) mean + c.tail longest +
//             (1 - c.tail) mean
//   memory  = bytes of Q, K, V, output / (0.85 bandwidth) +
//             bytes / (multiprocessors * cycles a second * c.bytes)
//   model   = (compute^q + memory^q)^(1/q) + c.overhead
//
// with d rounded up to that of the next kernel. From Ampere to Blackwell a
// multiprocessor computes 16 exponentials a cycle (CUDA programming guide,
// table of instruction throughput), while products became faster. A factor over
// (b h, s, d, heads per key) corrects the model to the measurements
// (factor_grid.h). The backward has a model of its own, attention_backward.h.
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
#include "emulator/cost/multiprocessor.h"
#include "emulator/ops/op_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

inline constexpr size_t kAttentionConstants = 12;
using AttentionConstants = std::array<double, kAttentionConstants>;

// Returns the seconds of a forward call, without any factor.
double AttentionModelSeconds(const AttentionConstants& constants,
                             const DeviceRates& rates,
                             const Multiprocessor& processor,
                             const AttentionShape& shape);

// Fits the constants to a table. REQUIRES: a valid forward table.
AttentionConstants FitAttention(const AttentionTable& table,
                                const DeviceRates& rates);

// Times of attention by a profile. Immutable and thread-safe.
class AttentionCosts {
 public:
  // Fits the tables that are not fitted yet. `rates` and
  // `processor` are those of the device to predict for; the profile has the
  // rates of the device that was measured. `own`: as in gemm_cost.h.
  AttentionCosts(const DeviceProfile& profile, const DeviceRates& rates,
                 const Multiprocessor& processor, bool own);

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
  Multiprocessor processor_;
  bool exact_;
  // Indexed by mask: causal, full.
  std::array<std::optional<Kind>, 2> kinds_{};
  AttentionBackward backward_{};
  absl::flat_hash_map<Fingerprint, double> points_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_ATTENTION_COST_H_
