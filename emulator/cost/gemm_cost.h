// Matrix products from measured ones.
//
// The kernel model, by its constants c: a result is cut into tiles of one of
// ten forms, the inner dimension into s = 1, 2, .. 16 parts; the tiles take
// turns on the multiprocessors, and the best choice counts:
//
//   compute = min over forms, s of
//             ceil(groups * tiles * s / multiprocessors) *
//             2 * tile * (k / s + c.fill) / (peak / multiprocessors * c.form)
//             [+ c.split + 4 s bytes of each result if s > 1]
//   memory  = (A + B + result) / (bandwidth * c.memory)
//   model   = (compute^q + memory^q)^(1/q) + c.overhead,  q = c.sharpness
//
// What is measured over the model is a factor over (m, n, k), factor_grid.h;
// gradients have another on top, over their own product's sizes, as have
// grouped products.
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

// One product, of any pass, by its own sizes.
struct GemmShape {
  double m = 0;
  double n = 0;
  double k = 0;
  double groups = 1;
  double element_bytes = 2;
  double result_bytes = 2;
};

// Seconds, without any factor.
double GemmModelSeconds(const GemmConstants& constants, double peak,
                        const DeviceRates& rates, const GemmShape& shape);

// To the table's points; deterministic. REQUIRES: a valid table.
GemmConstants FitGemm(const GemmTable& table, const DeviceRates& rates);

struct OpSeconds {
  double seconds = 0;
  CostSource source = CostSource::kInterpolated;
};

// Read-only once made; any number of threads.
class GemmCosts {
 public:
  // The profile's rates made its times; `rates` are those to predict for.
  GemmCosts(const DeviceProfile& profile, const DeviceRates& rates);

  // Nothing where no forward table covers the type. About 0.5 us.
  std::optional<OpSeconds> Price(const GemmOp& op) const;

 private:
  struct Kind {
    GemmConstants constants{};
    double peak = 0;
    FactorGrid forward{};
    std::array<FactorGrid, 3> correction{};  // By pass.
    std::array<bool, 3> corrected{};
    FactorGrid grouped{};
  };
  void AddForward(const GemmTable& table, const DeviceRates& made_with);
  void AddGradient(const GemmTable& table, const DeviceRates& made_with);

  DeviceRates rates_;
  bool exact_;
  std::array<std::optional<Kind>, 2> kinds_{};  // 16-bit, fp8.
  absl::flat_hash_map<Fingerprint, double> points_{};
};

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_GEMM_COST_H_
