// The power limit of a GPU in the passes of a step.
#include <algorithm>
#include <variant>
#include <vector>

#include "emulator/framework/framework_price.h"

namespace pipeloom::emulator {
namespace {

// The share of the power limit that is unused during other kernels and waits
// for the host. The clock follows the mean power, so that products may draw
// more than the limit for as long. Measured on an H200: products lose 17 % of
// their speed if they take all of a step, 0 to 4 % if they take 55 to 80 % of a
// step of plain PyTorch (docs/evaluation/pytorch.md). 0.4 gives 0 to 5 % there.
constexpr double kLeftByOthers = 0.4;

}  // namespace

Duration FrameworkPrices::AddedByPower(Duration time, double flops,
                                       double share, FlopRate peak) const {
  const double compute =
      flops / (peak.flops_per_second * device_.gemm_efficiency);
  return Seconds((1 / share - 1) * std::min(ToSeconds(time), compute));
}

Duration FrameworkPrices::Sustained(Duration time, double flops, double share,
                                    FlopRate peak) const {
  // Plain PyTorch has so many kernels between products that whole passes count.
  if (share >= 1 || setup_.framework == Framework::kPyTorch) return time;
  return time + AddedByPower(time, flops, share, peak);
}

Duration FrameworkPrices::InStep(const GemmOp& op, Duration time,
                                 bool low) const {
  const double flops = op.flops();
  if (low) {
    return LowPrecision(
        op, Sustained(time, flops, device_.sustained_fp8, device_.bf16));
  }
  switch (op.precision) {
    case Precision::kBf16:
      return Sustained(time, flops, device_.sustained_bf16, device_.bf16);
    case Precision::kFp8:
      return Sustained(time, flops, device_.sustained_fp8, device_.fp8);
    case Precision::kFp32:
      break;
  }
  return time;
}

Duration FrameworkPrices::WithPowerLimit(const std::vector<OpStep>& steps,
                                         Duration pass) const {
  if (setup_.framework != Framework::kPyTorch) return pass;
  Duration products = kZero;
  Duration added = kZero;
  const auto count = [&](const Op& op, double flops, double share) {
    const Duration time = Cost(op);
    products += time;
    added += AddedByPower(time, flops, share, device_.bf16);
  };
  for (const OpStep& step : steps) {
    for (const Op& op : step.compute) {
      if (const auto* gemm = std::get_if<GemmOp>(&op)) {
        if (RunsIn(*gemm) != Precision::kBf16) continue;
        count(op, gemm->flops(), device_.sustained_bf16);
      } else if (const auto* attention = std::get_if<AttentionOp>(&op)) {
        count(op, attention->flops, device_.sustained_attention);
      }
    }
  }
  const double left =
      kLeftByOthers * ToSeconds(std::max(kZero, pass - products));
  return pass + std::max(kZero, added - Seconds(left));
}

}  // namespace pipeloom::emulator
