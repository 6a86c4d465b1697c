// Power limits of GPUs: what they add to the passes of a stage.
#include <gtest/gtest.h>

#include "emulator/framework/framework_price.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

// A product lasts longer by 1 / 0.8 - 1 of what its operations take at the
// device's efficiency; the bytes of pointwise kernels take as long as before.
TEST(PowerLimit, AStepFullOfProductsKeepsAShareOfTheirRate) {
  struct Shares {
    double bf16 = 1;
    double fp8 = 1;
    double attention = 1;
  };
  const auto cost = [](const Shares& shares, Precision precision,
                       bool fp8_products = false) {
    JobSpec job = JobOf({{Llama3Block(), Llama3Block()}}, {});
    job.model.modules[ModuleId(0)].precision = precision;
    DeviceSpec& device = job.cluster.device;
    device.fp8 = {1.979e15};
    device.sustained_bf16 = shares.bf16;
    device.sustained_fp8 = shares.fp8;
    device.sustained_attention = shares.attention;
    job.setup.fp8_products = fp8_products;
    return StageCostModel(job).Cost(StageOf(2), Sequences(1, 4096), true);
  };
  const DeviceSpec device = JobOf({{Llama3Block()}}, {}).cluster.device;
  const double rate = device.bf16.flops_per_second * device.gemm_efficiency;
  const double parameters = 4096.0 * (4096 + 2 * 1024 + 4096 + 3 * 14336);
  const double products = 2 * 2.0 * 4096 * parameters;
  const double attention = 2 * 2.0 * 4096 * 4096 * 4096;
  const auto forward = [&](const Shares& shares, Precision precision) {
    return ToSeconds(cost(shares, precision).forward -
                     cost({}, precision).forward);
  };
  EXPECT_NEAR(forward({.bf16 = 0.8}, Precision::kBf16), 0.25 * products / rate,
              1e-7);
  EXPECT_NEAR(forward({.attention = 0.8}, Precision::kBf16),
              0.25 * attention / rate, 1e-7);
  EXPECT_EQ(forward({.fp8 = 0.8}, Precision::kBf16), 0);
  const StageCost cold = cost({}, Precision::kBf16);
  const StageCost warm = cost({.bf16 = 0.8}, Precision::kBf16);
  EXPECT_NEAR(ToSeconds(warm.weight_grad - cold.weight_grad),
              0.25 * products / rate, 1e-7);
  // Products of fp8 modules are another rate's; their attention is of 16 bits.
  EXPECT_EQ(forward({.bf16 = 0.8}, Precision::kFp8), 0);
  EXPECT_NEAR(forward({.fp8 = 0.8}, Precision::kFp8),
              0.25 * products / (1.979e15 * device.gemm_efficiency), 1e-7);
  // A framework's fp8 products follow the time of 16 bits, stretched first.
  const auto low = [&](const Shares& shares) {
    return ToSeconds(cost(shares, Precision::kBf16, true).weight_grad);
  };
  EXPECT_EQ(low({.bf16 = 0.8}), low({}));
  EXPECT_GT(low({.fp8 = 0.8}), 1.1 * low({}));
  EXPECT_LT(low({.fp8 = 0.8}), 1.26 * low({}));
}

// Products in fp8 run in 16 bits there, at the share of 16 bits.
TEST(PowerLimit, WithoutFp8UnitsAModuleInFp8TakesTheTimeOfBf16) {
  for (const Framework framework :
       {Framework::kMegatronCore, Framework::kPyTorch}) {
    const auto cost = [&](Precision precision) {
      JobSpec job = JobOf({{Llama3Block(), MoeBlock()}}, {});
      job.setup = SetupOf(framework);
      job.model.modules[ModuleId(0)].precision = precision;
      DeviceSpec& device = job.cluster.device;
      device.fp8 = {};
      device.sustained_bf16 = device.sustained_attention = 0.5;
      return StageCostModel(job).Cost(StageOf(2), Sequences(1, 4096), true);
    };
    const StageCost fp8 = cost(Precision::kFp8);
    const StageCost bf16 = cost(Precision::kBf16);
    EXPECT_EQ(fp8.forward, bf16.forward);
    EXPECT_EQ(fp8.fused, bf16.fused);
  }
}

// The share counts over a whole pass: what products draw more than the limit,
// less 0.4 of the time of kernels between them and of waits for the host.
TEST(PowerLimit, PlainPyTorchMeetsThePowerLimitWhereProductsFillAPass) {
  const auto cost = [](double share, double host_us, bool eager = false) {
    JobSpec job = JobOf({{Llama3Block(), Llama3Block()}}, {});
    job.setup = SetupOf(Framework::kPyTorch);
    job.setup.attention = AttentionKernel::kFused;
    job.setup.eager_pointwise = eager;
    job.setup.host_per_kernel = Microseconds(host_us);
    job.cluster.device.sustained_bf16 = share;
    job.cluster.device.sustained_attention = share;
    return StageCostModel(job).Cost(StageOf(2), Sequences(1, 4096), true);
  };
  const DeviceSpec device = JobOf({{Llama3Block()}}, {}).cluster.device;
  const double rate = device.bf16.flops_per_second * device.gemm_efficiency;
  const double parameters = 4096.0 * (4096 + 2 * 1024 + 4096 + 3 * 14336);
  const double flops = 2 * (2.0 * 4096 * parameters + 2.0 * 4096 * 4096 * 4096);
  const StageCost cold = cost(1, 0);
  const StageCost warm = cost(0.6, 0);
  const StageCost hot = cost(0.5, 0);
  EXPECT_NEAR(ToSeconds(hot.forward - warm.forward),
              (1 / 0.5 - 1 / 0.6) * flops / rate, 1e-7);
  EXPECT_GT(warm.forward, cold.forward);
  EXPECT_LT(ToSeconds(warm.forward - cold.forward),
            (1 / 0.6 - 1) * flops / rate - 1e-4);
  EXPECT_GT(warm.weight_grad, cold.weight_grad);
  EXPECT_GT(warm.fused, cold.fused);
  EXPECT_LE(warm.fused, warm.backward + warm.weight_grad);
  // Waits for the host leave enough power for all products.
  EXPECT_EQ(cost(0.6, 5000).forward, cost(1, 5000).forward);
  EXPECT_EQ(cost(0.6, 5000).fused, cost(1, 5000).fused);
  // So do kernels between products, at the share of an H100.
  EXPECT_EQ(cost(0.87, 30, true).forward, cost(1, 30, true).forward);
}

}  // namespace
}  // namespace pipeloom::emulator
