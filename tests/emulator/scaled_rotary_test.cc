// A rotation of queries and keys that also multiplies them by a factor.
#include <gtest/gtest.h>

#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

StageCost CostOf(bool scaled, const TrainingSetup& setup) {
  LayerSpec block = Llama3Block();
  block.attention.scaled_rotary = scaled;
  JobSpec job = JobOf({{block, block}}, {});
  job.setup = setup;
  return StageCostModel(job).Cost(StageOf(2), Sequences(1, 4096),
                                  /*needs_input_grad=*/true);
}

TEST(ScaledRotary, MovesTwentyAndTwentyFourMoreBytesInMegatronCore) {
  const StageCost plain = CostOf(false, {});
  const StageCost scaled = CostOf(true, {});
  // Two layers; 32 heads of queries, 8 of keys, of 128.
  const double element = 2.0 * 4096 * (32 + 8) * 128 / 0.75 / (3.35e12 * 0.8);
  EXPECT_NEAR(ToSeconds(scaled.forward - plain.forward), 20 * element, 1e-8);
  EXPECT_NEAR(ToSeconds(scaled.backward - plain.backward), 24 * element, 1e-8);
  EXPECT_EQ(scaled.weight_grad, plain.weight_grad);
  // Other frameworks compile it, or run all operators one by one anyway.
  for (const Framework framework :
       {Framework::kTorchTitan, Framework::kPyTorch}) {
    const TrainingSetup setup = SetupOf(framework);
    EXPECT_EQ(CostOf(true, setup).forward, CostOf(false, setup).forward);
    EXPECT_EQ(CostOf(true, setup).backward, CostOf(false, setup).backward);
  }
}

TEST(ScaledRotary, LaunchesMoreKernelsOutsideOfGraphs) {
  TrainingSetup setup = SetupOf(Framework::kMegatronBridge);
  // So slow that nothing but launches counts.
  setup.host_per_kernel = Microseconds(100000);
  EXPECT_NEAR(
      ToSeconds(CostOf(true, setup).forward - CostOf(false, setup).forward),
      2 * 22 * 0.1, 1e-3);
  EXPECT_NEAR(ToSeconds(CostOf(true, setup).fused - CostOf(false, setup).fused),
              2 * 12 * 0.1, 1e-3);
  setup.graphs = CudaGraphs::kLayers;
  EXPECT_NEAR(
      ToSeconds(CostOf(true, setup).forward - CostOf(false, setup).forward), 0,
      1e-3);
}

}  // namespace
}  // namespace pipeloom::emulator
