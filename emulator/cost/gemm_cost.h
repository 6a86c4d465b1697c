// Matrix products from measured ones.
//
// The kernel model with constants c: a result is cut into tiles of one of ten
// forms, the inner dimension into s = 1, 2, .. 16 parts; the multiprocessors
// process the tiles in waves, and the best choice counts:
//
//   compute = min over forms, s of
//             ceil(groups * tiles * s / multiprocessors) *
//             2 * tile * (k / s + c.fill) / (peak / multiprocessors * c.form)
//             [+ c.split + 4 s bytes of each result if s > 1]
//   memory  = (A + B + result) / (bandwidth * c.memory)
//   model   = (compute^q + memory^q)^(1/q) + c.overhead,  q = c.sharpness
//
// The ratio of measurements to the model is a factor over (m, n, k),
// factor_grid.h. Gradients and grouped products have another factor in
// addition, over the sizes of their own product.
#ifndef PIPELOOM_EMULATOR_COST_GEMM_COST_H_
#define PIPELOOM_EMULATOR_COST_GEMM_COST_H_

#include <array>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/fingerprint.h"
#include "emulator/cost/factor_grid.h"
#include "emulator/ops/op_cost.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::emulator {

inline constexpr size_t kGemmConstants = 10;
using GemmConstants = std::array<double, kGemmConstants>;

// One product of any pass, with its own sizes.
struct GemmShape {
  double m = 0;
  double n = 0;
  double k = 0;
  double groups = 1;
  double element_bytes = 2;
  double result_bytes = 2;
};

// Returns the seconds of a product, without any factor.
double GemmModelSeconds(const GemmConstants& constants, double peak,
                        const DeviceRates& rates, const GemmShape& shape);

// Fits the constants to the table's points; deterministic. REQUIRES: a valid
// table.
GemmConstants FitGemm(const GemmTable& table, const DeviceRates& rates);

// A time with its source.
struct OpSeconds {
  double seconds = 0;
  CostSource source = CostSource::kInterpolated;
};

// Times of products by a profile. Immutable and thread-safe.
class GemmCosts {
 public:
  // The profile's times belong to the rates in the profile; `rates` are those
  // to predict for. Points are exact if no rate differs or, on the profile's
  // `own` device, none that the product uses.
  GemmCosts(const DeviceProfile& profile, const DeviceRates& rates, bool own);

  // Returns the time of a product; nullopt if no forward table covers its type.
  // About 0.5 us.
  std::optional<OpSeconds> Price(const GemmOp& op) const;

 private:
  struct Kind {
    GemmConstants constants{};
    double peak = 0;
    bool exact = false;
    FactorGrid forward{};
    std::array<FactorGrid, 3> correction{};  // Indexed by pass.
    std::array<bool, 3> corrected{};
    FactorGrid grouped{};
  };
  void AddForward(const GemmTable& table, const DeviceRates& made_with);
  void AddGradient(const GemmTable& table, const DeviceRates& made_with);

  DeviceRates rates_;
  bool own_;
  std::array<std::optional<Kind>, 2> kinds_{};  // Indexed by type: 16-bit, fp8.
  absl::flat_hash_map<Fingerprint, double> points_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_GEMM_COST_H_
