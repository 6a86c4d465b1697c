// Launches of the host for experts.
#include <gtest/gtest.h>

#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

// Returns the time of a layer's passes at a host so slow that nothing but its
// launches counts: 0.1 s each.
StageCost LaunchesOf(int64_t experts, Fp8Recipe recipe, bool fp8) {
  LayerSpec block = MoeBlock();
  block.ffn.experts = experts;
  JobSpec job = JobOf({{block}}, {});
  job.cluster.device.fp8 = {1.979e15};
  job.setup.host_per_kernel = Microseconds(100000);
  job.setup.fp8_products = fp8;
  job.setup.fp8_recipe = recipe;
  return StageCostModel(job).Cost(StageOf(1), Sequences(1, 64),
                                  /*needs_input_grad=*/true);
}

TEST(ExpertLaunches, AnExpertCostsItsProductsAndTheirPreparation) {
  const auto of_eight = [](Fp8Recipe recipe, bool fp8) {
    const StageCost few = LaunchesOf(8, recipe, fp8);
    const StageCost many = LaunchesOf(16, recipe, fp8);
    EXPECT_NEAR(ToSeconds(many.fused - few.fused),
                2 * ToSeconds(many.forward - few.forward), 1e-3);
    return ToSeconds(many.forward - few.forward);
  };
  // In kernels of 30 us: products of 33 us, 19 us of preparation.
  const double prepared = 8 * (2 * 33 + 19) / 30.0 * 0.1;
  EXPECT_NEAR(of_eight(Fp8Recipe::kTensor, false), prepared, 1e-3);
  EXPECT_NEAR(of_eight(Fp8Recipe::kBlocks, true), prepared, 1e-3);
  // One scale a tensor: three more launches of 4 us for each of two casts.
  EXPECT_NEAR(of_eight(Fp8Recipe::kTensor, true), prepared + 8 * 0.8 * 0.1,
              1e-3);
}

}  // namespace
}  // namespace pipeloom::emulator
