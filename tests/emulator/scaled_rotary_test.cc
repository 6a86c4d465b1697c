// A rotation of queries and keys that also multiplies them by a factor.
#include <gtest/gtest.h>

#include "emulator/framework/pytorch_traffic.h"
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
  // An operator takes the host no longer than in plain PyTorch.
  const double operators =
      ToSeconds(SetupOf(Framework::kPyTorch).host_per_kernel);
  EXPECT_NEAR(
      ToSeconds(CostOf(true, setup).forward - CostOf(false, setup).forward),
      2 * 22 * operators, 1e-5);
  EXPECT_NEAR(ToSeconds(CostOf(true, setup).fused - CostOf(false, setup).fused),
              2 * 12 * operators, 1e-5);
  setup.graphs = CudaGraphs::kLayers;
  EXPECT_NEAR(
      ToSeconds(CostOf(true, setup).forward - CostOf(false, setup).forward), 0,
      1e-5);
}

TEST(ScaledRotary, AnOperatorTakesTheHostAsLongAsInPlainPyTorchAtMost) {
  AttentionSpec causal;
  causal.kind = AttentionKind::kCausal;
  const Duration plain = SetupOf(Framework::kPyTorch).host_per_kernel;
  EXPECT_EQ(RotationLaunches(causal, 0, plain / 2).forward, 22);
  EXPECT_EQ(RotationLaunches(causal, 0, plain).backward, 12);
  EXPECT_EQ(RotationLaunches(causal, 0, 2 * plain).forward, 11);
  // Sections of three axes; borders of several samples.
  EXPECT_EQ(RotationLaunches(causal, 1, plain).forward, 26);
  EXPECT_EQ(RotationLaunches(causal, 10, plain).forward, 300);
  EXPECT_EQ(RotationLaunches(causal, 10, plain).backward, 120);
  // An encoder rotates all its images at once, in fp32.
  causal.kind = AttentionKind::kFull;
  EXPECT_EQ(RotationLaunches(causal, 10, plain).forward, 26);
  EXPECT_EQ(RotationLaunches(causal, 10, plain).backward, 16);
}

// Ten samples with images are packed, ten of text are a batch.
TEST(ScaledRotary, PackedSequencesAreRotatedOneByOne) {
  LayerSpec block = Llama3Block();
  const auto forward = [&](bool scaled, bool images) {
    block.attention.scaled_rotary = scaled;
    JobSpec job =
        images ? JobOf({{Vit5bBlock()}, {block}}, {}) : JobOf({{block}}, {});
    job.setup = SetupOf(Framework::kMegatronBridge);
    job.setup.host_per_kernel = Microseconds(100000);
    WorkShape shape = Sequences(10, 64);
    shape.sequences = 10;
    return ToSeconds(StageCostModel(job)
                         .Cost(StageOf(1, images ? 1 : 0), shape, true)
                         .forward);
  };
  const double once = forward(true, false) - forward(false, false);
  const double packed = forward(true, true) - forward(false, true);
  EXPECT_NEAR(packed / once, 10 * 30 / 22.0, 0.1);
}

}  // namespace
}  // namespace pipeloom::emulator
