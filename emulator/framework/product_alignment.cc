#include "emulator/framework/product_alignment.h"

#include <cmath>

#include "emulator/cost/device_cycles.h"

namespace pipeloom::emulator {
namespace {

// Share of the rate of Ampere's instructions: of loads of one element, forward
// and gradients, and of loads of two or four. Measured on an H200 with PyTorch
// 2.11, from 1,024 tokens on: 99, 145 and 200 to 274 of 494 TFLOP/s.
constexpr double kOddForward = 0.2;
constexpr double kOddGradients = 0.29;
constexpr double kEven = 0.5;
constexpr double kAligned = 8;  // Elements of 16 bits in 16 bytes.

bool Divides(double divisor, double size) {
  return std::fmod(size, divisor) == 0;
}

}  // namespace

Duration UnalignedProductTime(const GemmOp& op, const DeviceSpec& device) {
  // The widths of the weight; a weight gradient sums over the tokens.
  const bool is_weight_grad = op.pass == QueryPass::kWeightGrad;
  const double a = op.n;
  const double b = is_weight_grad ? op.m : op.k;
  if (op.precision != Precision::kBf16 ||
      (Divides(kAligned, a) && Divides(kAligned, b))) {
    return kZero;
  }
  const bool is_odd = !Divides(2, a) || !Divides(2, b);
  const double share = !is_odd                          ? kEven
                       : op.pass == QueryPass::kForward ? kOddForward
                                                        : kOddGradients;
  return Seconds(op.flops() / (AmpereRate(device) * share));
}

}  // namespace pipeloom::emulator
