// Launches of the host for experts.
#include <gtest/gtest.h>

#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

// Returns the time of a layer's passes on a GPU so fast that nothing but
// launches counts.
StageCost LaunchesOf(int64_t experts, Fp8Recipe recipe, bool fp8,
                     double host_us = 30) {
  LayerSpec block = MoeBlock();
  block.ffn.experts = experts;
  JobSpec job = JobOf({{block}}, {});
  DeviceSpec& device = job.cluster.device;
  device.bf16 = {1e21};
  device.fp8 = {2e21};
  device.memory_bandwidth.bytes_per_second = 1e21;
  device.kernel_overhead = kZero;
  job.setup.host_per_kernel = Microseconds(host_us);
  job.setup.fp8_products = fp8;
  job.setup.fp8_recipe = recipe;
  return StageCostModel(job).Cost(StageOf(1), Sequences(1, 64),
                                  /*needs_input_grad=*/true);
}

TEST(ExpertLaunches, AnExpertCostsItsProductsAndTheirPreparation) {
  const auto of_eight = [](Fp8Recipe recipe, bool fp8) {
    const StageCost few = LaunchesOf(8, recipe, fp8);
    const StageCost many = LaunchesOf(16, recipe, fp8);
    EXPECT_NEAR(ToMicroseconds(many.fused - few.fused),
                2 * ToMicroseconds(many.forward - few.forward), 1);
    return ToMicroseconds(many.forward - few.forward);
  };
  // Products of 33 us, 19 us of preparation.
  const double prepared = 8 * (2 * 33 + 19);
  EXPECT_NEAR(of_eight(Fp8Recipe::kTensor, false), prepared, 1);
  EXPECT_NEAR(of_eight(Fp8Recipe::kBlocks, true), prepared, 1);
  // One scale a tensor: three more launches of 4 us for each of two casts.
  EXPECT_NEAR(of_eight(Fp8Recipe::kTensor, true), prepared + 8 * 24, 1);
}

// A framework whose Python takes longer for a kernel calls the same loops.
TEST(ExpertLaunches, AnExpertTakesAHostAtMostItsMeasuredTime) {
  const auto of_eight = [](double host_us) {
    return ToMicroseconds(
        LaunchesOf(16, Fp8Recipe::kTensor, false, host_us).forward -
        LaunchesOf(8, Fp8Recipe::kTensor, false, host_us).forward);
  };
  EXPECT_NEAR(of_eight(15), 8 * (2 * 33 + 19) / 2.0, 1);
  EXPECT_NEAR(of_eight(70), 8 * (2 * 33 + 19), 1);
}

}  // namespace
}  // namespace pipeloom::emulator
