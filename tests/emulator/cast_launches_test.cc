// Casts of operands of low-precision products: their launches and their time.
#include "emulator/framework/cast_launches.h"

#include <gtest/gtest.h>

#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TrainingSetup SetupWith(Fp8Recipe recipe, double host_us) {
  TrainingSetup setup;
  setup.fp8_products = true;
  setup.fp8_recipe = recipe;
  setup.host_per_kernel = Microseconds(host_us);
  return setup;
}

TEST(CastLaunches, EachBlockCastsOneInputAndTwoGradients) {
  const EagerLaunches casts =
      CastLaunches(Llama3Block(), SetupWith(Fp8Recipe::kBlocks, 30));
  EXPECT_NEAR(casts.forward * 30, 2 * 17, 1e-9);
  EXPECT_NEAR(casts.backward * 30, 4 * 17, 1e-9);
  // A faster host takes less for an operator, a slower one no longer.
  EXPECT_NEAR(
      CastLaunches(Llama3Block(), SetupWith(Fp8Recipe::kBlocks, 10)).forward, 2,
      1e-9);
  EXPECT_NEAR(
      CastLaunches(Llama3Block(), SetupWith(Fp8Recipe::kBlocks, 70)).forward *
          70,
      2 * 17, 1e-9);
}

TEST(CastLaunches, OneScaleATensorTakesThreeMoreLaunchesOfEachOperand) {
  const EagerLaunches casts =
      CastLaunches(Llama3Block(), SetupWith(Fp8Recipe::kTensor, 30));
  EXPECT_NEAR(casts.forward * 30, 2 * 17 + 4 * 12, 1e-9);
  EXPECT_NEAR(casts.backward * 30, 4 * 17 + 4 * 12, 1e-9);
}

TEST(CastLaunches, RoutedExpertsAndSixteenBitsHaveNone) {
  LayerSpec layer = MoeBlock();
  layer.ffn.shared_experts = 0;
  const TrainingSetup setup = SetupWith(Fp8Recipe::kBlocks, 30);
  EXPECT_NEAR(CastLaunches(layer, setup).forward * 30, 17, 1e-9);
  layer.ffn.shared_experts = 1;
  EXPECT_NEAR(CastLaunches(layer, setup).forward * 30, 2 * 17, 1e-9);
  EXPECT_EQ(CastLaunches(Llama3Block(), {}).forward, 0);
  EXPECT_EQ(
      CastLaunches(Llama3Block(), SetupWith(Fp8Recipe::kBlocks, 0)).backward,
      0);
}

TEST(CastLaunches, APlainFourBitRecipeCastsForLess) {
  TrainingSetup setup;
  setup.fp8_products = true;
  setup.fp8_recipe = Fp8Recipe::kFp4;
  JobSpec job = JobOf({{Llama3Block()}}, {});
  job.cluster.device.bf16 = {2.5e15};
  job.cluster.device.fp8 = {5e15};
  const auto forward = [&](Fp8Recipe recipe) {
    setup.fp8_recipe = recipe;
    job.setup = setup;
    return StageCostModel(job)
        .Cost(StageOf(1), Sequences(1, 8192), true)
        .forward;
  };
  EXPECT_LT(forward(Fp8Recipe::kFp4Plain), forward(Fp8Recipe::kFp4));
}

}  // namespace
}  // namespace pipeloom::emulator
