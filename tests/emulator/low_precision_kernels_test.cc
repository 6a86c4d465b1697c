// fp8 attention, and experts whose products and activation are one kernel.
#include <gtest/gtest.h>

#include <utility>

#include "emulator/framework/attention_kernels.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TEST(Fp8Attention, GainsMoreOnLatentHeadsAndLessWithScalesOfBlocks) {
  const auto gain = [](int64_t head_dim, bool backward, Fp8Recipe recipe) {
    return Fp8AttentionGain(
        {.head_dim = head_dim, .value_dim = 128, .backward = backward}, recipe);
  };
  for (const bool backward : {false, true}) {
    for (const int64_t head_dim : {128, 192}) {
      EXPECT_LT(gain(head_dim, backward, Fp8Recipe::kBlocks),
                gain(head_dim, backward, Fp8Recipe::kTensor));
      EXPECT_EQ(gain(head_dim, backward, Fp8Recipe::kFp4Plain),
                gain(head_dim, backward, Fp8Recipe::kTensor));
    }
    EXPECT_GT(gain(192, backward, Fp8Recipe::kBlocks),
              gain(128, backward, Fp8Recipe::kBlocks));
  }
  EXPECT_EQ(gain(64, false, Fp8Recipe::kTensor), 1);
  // The backward of usual heads is as fast in 16 bits.
  EXPECT_NEAR(gain(128, true, Fp8Recipe::kBlocks), 1, 0.03);
  EXPECT_NEAR(gain(192, true, Fp8Recipe::kBlocks), 1.32, 1e-9);
}

StageCost CostOf(bool fused, Fp8Recipe recipe, double rate,
                 const LayerSpec& layer) {
  JobSpec job = JobOf({{layer}}, {});
  job.cluster.device.bf16 = {rate};
  job.cluster.device.fp8 = {2 * rate};
  job.setup.fp8_products = true;
  job.setup.fp8_recipe = recipe;
  job.setup.fused_experts = fused;
  return StageCostModel(job).Cost(StageOf(1), Sequences(1, 4096), true);
}

// Forward of a layer in fp8 relative to 16 bits, where nothing but products
// counts much.
double Fp8Gain(double bf16, double bandwidth) {
  const auto forward = [&](bool fp8) {
    JobSpec job = JobOf({{Llama3Block()}}, {});
    job.cluster.device.bf16 = {bf16};
    job.cluster.device.fp8 = {2 * bf16};
    job.cluster.device.memory_bandwidth = {bandwidth};
    job.setup.fp8_products = fp8;
    return ToSeconds(
        StageCostModel(job).Cost(StageOf(1), Sequences(64, 128), true).forward);
  };
  return forward(false) / forward(true);
}

TEST(Fp8Products, GainMoreWhereTheirRateIsReduced) {
  EXPECT_GT(Fp8Gain(148e12, 4e12), 1.8);      // H20.
  EXPECT_LT(Fp8Gain(989e12, 4e12), 1.47);     // H100.
  EXPECT_LT(Fp8Gain(362e12, 0.86e12), 1.47);  // L40S.
}

// 4096 tokens visit 8 experts of 768 each.
TEST(FusedExperts, SaveTheTrafficOfTheirActivationsAndCasts) {
  const auto saved = [](Fp8Recipe recipe, double rate) {
    const StageCost apart = CostOf(false, recipe, rate, MoeBlock());
    const StageCost fused = CostOf(true, recipe, rate, MoeBlock());
    EXPECT_EQ(fused.weight_grad, apart.weight_grad);
    return std::pair(ToSeconds(apart.forward - fused.forward),
                     ToSeconds(apart.backward - fused.backward));
  };
  const double element = 4096.0 * 8 * 768 / (3.35e12 * 0.8);
  const auto [forward, backward] = saved(Fp8Recipe::kBlocks, 2.5e15);
  EXPECT_NEAR(forward, 8 * element, 1e-8);
  EXPECT_NEAR(backward, 12 * element, 1e-8);
  // There is no such kernel for other recipes and older devices, and none for
  // layers without experts.
  EXPECT_EQ(saved(Fp8Recipe::kTensor, 2.5e15), std::pair(0.0, 0.0));
  EXPECT_EQ(saved(Fp8Recipe::kBlocks, 1e15), std::pair(0.0, 0.0));
  EXPECT_EQ(CostOf(true, Fp8Recipe::kBlocks, 2.5e15, Llama3Block()).forward,
            CostOf(false, Fp8Recipe::kBlocks, 2.5e15, Llama3Block()).forward);
}

}  // namespace
}  // namespace pipeloom::emulator
