#include "partition/placement/orchestration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

OrchestrationProblem RandomProblem(uint64_t seed) {
  Random random(seed);
  OrchestrationProblem problem;
  problem.gpus = static_cast<int32_t>(random.Between(3, 24));
  problem.batch = random.Between(1, 30);
  problem.most_stages = static_cast<int32_t>(random.Between(1, 6));
  problem.memory_bytes = random.Below(3) == 0 ? 0 : 80;
  const auto fill = [&](UnitProblem* unit, double seconds, double bytes) {
    for (const int32_t tp : {1, 2, 4}) {
      for (const bool recompute : {false, true}) {
        const double work = seconds * (0.5 + random.Unit());
        unit->options.push_back(
            {.tp = tp,
             .recompute = recompute,
             .seconds = work / tp * (recompute ? 1.3 : 1.0),
             .weight_bytes = bytes / tp,
             .optimizer_bytes = 2 * bytes / tp,
             .activation_bytes = (recompute ? 2.0 : 10.0) / tp});
      }
    }
  };
  fill(&problem.backbone, 8, 60);
  if (random.Below(5) != 0) fill(&problem.encoder, 2, 10);
  if (random.Below(3) != 0) fill(&problem.generator, 3, 10);
  return problem;
}

// Every layout of every unit, one by one.
double Exhaustive(const OrchestrationProblem& p) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double best = kNever;
  const UnitOption none;
  const auto options = [&](const UnitProblem& unit) {
    return unit.options.empty() ? std::vector<UnitOption>{none} : unit.options;
  };
  for (const UnitOption& b : p.backbone.options) {
    for (int32_t dp = 1; dp <= p.batch; ++dp) {
      if (p.batch % dp != 0) continue;
      const auto rounds = static_cast<double>(p.batch / dp);
      for (int32_t pp = 1; pp <= p.most_stages; ++pp) {
        const int32_t y = b.tp * dp * pp;
        if (y > p.gpus) continue;
        const double needed =
            b.weight_bytes / pp + b.optimizer_bytes / pp / dp +
            b.activation_bytes * std::min<double>(pp, rounds) / pp;
        if (p.memory_bytes > 0 && needed > p.memory_bytes) continue;
        for (const UnitOption& e : options(p.encoder)) {
          for (const UnitOption& g : options(p.generator)) {
            for (int32_t x = 0; x + y <= p.gpus; ++x) {
              for (int32_t z = 0; x + y + z <= p.gpus; ++z) {
                const double te =
                    p.encoder.options.empty()
                        ? 0
                        : UnitSeconds(e, x, dp, pp + 2, p.memory_bytes);
                const double tg =
                    p.generator.options.empty()
                        ? 0
                        : UnitSeconds(g, z, dp, 1, p.memory_bytes);
                best = std::min(best, b.seconds + te + tg +
                                          std::max({b.seconds / pp, te, tg}) *
                                              (rounds - 1));
              }
            }
          }
        }
      }
    }
  }
  return best;
}

TEST(OrchestrateTest, IsAsGoodAsExhaustiveSearchOnSmallClusters) {
  int solved = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const OrchestrationProblem problem = RandomProblem(seed);
    const double best = Exhaustive(problem);
    const auto found = Orchestrate(problem);
    if (std::isinf(best)) {
      EXPECT_TRUE(absl::IsResourceExhausted(found.status())) << seed;
      continue;
    }
    ASSERT_THAT(found, IsOk()) << seed;
    EXPECT_NEAR(found->seconds(), best, 1e-9 * best) << seed;
    EXPECT_LE(found->gpus(), problem.gpus) << seed;
    const UnitAnswer& b = found->backbone;
    EXPECT_EQ(b.gpus, b.tp * b.pp * b.dp) << seed;
    EXPECT_EQ(problem.batch % b.dp, 0) << seed;
    ++solved;
  }
  EXPECT_GT(solved, 60);
}

// With no encoder or generator all that is left is a pipeline.
TEST(OrchestrateTest, ABackboneAloneTakesAsManyReplicasAsItCan) {
  OrchestrationProblem problem;
  problem.gpus = 8;
  problem.batch = 8;
  problem.most_stages = 4;
  problem.backbone.options = {{.tp = 1, .seconds = 1}};
  ASSERT_OK_AND_ASSIGN(const OrchestrationAnswer answer, Orchestrate(problem));
  EXPECT_EQ(answer.backbone.dp, 8);
  EXPECT_DOUBLE_EQ(answer.seconds(), 1);
}

TEST(OrchestrateTest, SaysWhatDoesNotFit) {
  OrchestrationProblem problem;
  problem.gpus = 8;
  problem.batch = 8;
  problem.memory_bytes = 10;
  problem.backbone.name = "backbone";
  problem.backbone.options = {{.tp = 1, .seconds = 1, .weight_bytes = 100}};
  EXPECT_THAT(
      Orchestrate(problem),
      FailsWith(absl::StatusCode::kResourceExhausted, HasSubstr("8 GPUs")));
  problem.backbone.options.clear();
  EXPECT_THAT(
      Orchestrate(problem),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("backbone")));
}

}  // namespace
}  // namespace pipeloom::partition
