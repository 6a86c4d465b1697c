#include "emulator/cost/straggler.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TEST(Straggler, TheExpectedMaximumIsThatOfDrawnValues) {
  // Exact for one and two values.
  EXPECT_EQ(ExpectedMaximum(1), 0);
  EXPECT_NEAR(ExpectedMaximum(2), 1 / std::sqrt(M_PI), 0.03);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const int64_t n : {8, 64, 1024}) {
    double sum = 0;
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) {
      double largest = -HUGE_VAL;
      for (int64_t k = 0; k < n; ++k) {
        largest = std::max(largest, normal(random));
      }
      sum += largest;
    }
    EXPECT_NEAR(ExpectedMaximum(n), sum / kDraws, 0.04) << n;
  }
}

TEST(Straggler, OneGpuAndEqualGpusWaitForNobody) {
  EXPECT_EQ(SlowestOf(0.1, 1), 1);
  EXPECT_EQ(SlowestOf(0, 4096), 1);
  EXPECT_GT(SlowestOf(0.01, 4096), SlowestOf(0.01, 512));
}

TEST(Straggler, PassesTakeTheTimeOfTheSlowestOfAllGpus) {
  JobSpec job = JobOf({{Llama3Block()}}, {.tp = 2, .dp = 16});
  const Stage stage{.module = ModuleId(0),
                    .first_layer = LayerId(0),
                    .num_layers = 1,
                    .rank = RankId(0)};
  const auto cost = [&] {
    return StageCostModel(job).Cost(stage, Sequences(1, 4096), true);
  };
  const StageCost mean = cost();
  job.setup.straggle = 0.02;
  const StageCost slow = cost();
  EXPECT_NEAR(ToSeconds(slow.forward) / ToSeconds(mean.forward),
              SlowestOf(0.02, 32), 1e-6);
  EXPECT_NEAR(ToSeconds(slow.fused) / ToSeconds(mean.fused),
              SlowestOf(0.02, 32), 1e-6);
  EXPECT_EQ(slow.activations, mean.activations);
}

}  // namespace
}  // namespace pipeloom::emulator
