#include "planner/layout/disaggregation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "planner/step/sample_steps.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::OrchestrationProblem;
using partition::UnitOption;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kEncoder = 0;
constexpr int32_t kBackbone = 1;

const UnitOption& OptionOf(const partition::UnitProblem& unit, int32_t tp,
                           bool recompute) {
  return *std::find_if(unit.options.begin(), unit.options.end(),
                       [&](const UnitOption& o) {
                         return o.tp == tp && o.recompute == recompute;
                       });
}

// Mean time of a whole module on a microbatch of the sample steps.
double MeanSeconds(const JobSpec& job, const BatchMetadata& sample,
                   int32_t module, bool needs_input_grad, bool forward_only) {
  JobSpec own = job;
  own.parallel = {};
  own.partition = {};
  const emulator::StageCostModel costs(own);
  const auto steps = *SampleSteps(costs, sample, 2);
  Partition whole;
  whole.sub_microbatch_instances.assign(own.model.modules.size(), 0);
  double seconds = 0;
  int64_t microbatches = 0;
  for (const partition::PackedStep& step : steps) {
    const auto split = *partition::SplitMicrobatches(own, step, 0, whole);
    microbatches += split.num_microbatches;
    for (const SubMicrobatch& sub : split.sub_microbatches) {
      if (sub.module != ModuleId(module)) continue;
      const emulator::StageCost c =
          costs.Cost({.module = sub.module,
                      .first_layer = LayerId(0),
                      .num_layers = own.model.modules[sub.module].layers.size(),
                      .rank = RankId(0),
                      .segment = SegmentId(0)},
                     sub.shape, needs_input_grad);
      seconds += ToSeconds(c.forward);
      if (!forward_only) {
        seconds += ToSeconds(c.all_passes() - c.forward);
      }
    }
  }
  return seconds / static_cast<double>(microbatches);
}

TEST(MakeOrchestrationProblemTest, PricesUnitsAsTheCostModelDoes) {
  JobSpec job = SmallVlmJob();
  const BatchMetadata sample = RandomBatch(3, 300, 6);
  ASSERT_OK_AND_ASSIGN(const OrchestrationProblem problem,
                       MakeOrchestrationProblem(job, sample, nullptr));
  EXPECT_EQ(problem.gpus, 4);
  EXPECT_EQ(problem.batch, 8);
  EXPECT_EQ(problem.most_stages, 8);
  EXPECT_THAT(problem.generator.options, IsEmpty());
  EXPECT_THAT(problem.encoder.options, SizeIs(6));  // tp 1, 2, 4.
  const double encoder = MeanSeconds(job, sample, kEncoder, false, false);
  const double backbone = MeanSeconds(job, sample, kBackbone, true, false);
  EXPECT_NEAR(OptionOf(problem.encoder, 1, false).seconds, encoder,
              1e-9 * encoder);
  EXPECT_NEAR(OptionOf(problem.backbone, 1, false).seconds, backbone,
              1e-9 * backbone);
  // Recomputing is a second forward, and holds less.
  const double forward = MeanSeconds(job, sample, kBackbone, true, true);
  const UnitOption& again = OptionOf(problem.backbone, 1, true);
  EXPECT_NEAR(again.seconds, backbone + forward, 1e-9 * backbone);
  EXPECT_LT(again.activation_bytes,
            OptionOf(problem.backbone, 1, false).activation_bytes);
  // The slowest of one stage is all, and more stages make it smaller.
  ASSERT_THAT(problem.slowest_share, SizeIs(8));
  EXPECT_DOUBLE_EQ(problem.slowest_share[0], 1);
  for (size_t pp = 1; pp < 8; ++pp) {
    EXPECT_LE(problem.slowest_share[pp], problem.slowest_share[pp - 1]);
    EXPECT_GE(problem.slowest_share[pp], 1.0 / static_cast<double>(pp + 1));
  }
  // A frozen encoder is a forward and holds no optimizer.
  job.training.frozen_modules = {"encoder"};
  ASSERT_OK_AND_ASSIGN(const OrchestrationProblem frozen,
                       MakeOrchestrationProblem(job, sample, nullptr));
  EXPECT_NEAR(OptionOf(frozen.encoder, 1, false).seconds,
              MeanSeconds(job, sample, kEncoder, false, true), 1e-9);
  EXPECT_EQ(OptionOf(frozen.encoder, 1, false).optimizer_bytes, 0);
}

// Every encoder and backbone size of the priced problem, one by one.
double Exhaustive(const OrchestrationProblem& p) {
  double best = std::numeric_limits<double>::infinity();
  for (const UnitOption& b : p.backbone.options) {
    for (int32_t dp = 1; dp <= p.batch; ++dp) {
      if (p.batch % dp != 0) continue;
      const auto rounds = static_cast<double>(p.batch / dp);
      for (int32_t pp = 1; pp <= p.most_stages; ++pp) {
        const int32_t y = b.tp * dp * pp;
        if (y >= p.gpus) continue;
        const double stage = p.SlowestShare(pp);
        const double bytes =
            (b.weight_bytes + b.optimizer_bytes / dp) / pp +
            b.activation_bytes * std::min<double>(pp, rounds) / pp;
        if (bytes > p.memory_bytes) continue;
        for (const UnitOption& e : p.encoder.options) {
          for (int32_t x = 1; x + y <= p.gpus; ++x) {
            const double te =
                partition::UnitSeconds(e, x, dp, pp + 2, p.memory_bytes);
            best = std::min(best,
                            b.seconds + te +
                                std::max(b.seconds * stage, te) * (rounds - 1));
          }
        }
      }
    }
  }
  return best;
}

TEST(MakeOrchestrationProblemTest, IsSolvedAsWellAsByExhaustiveSearch) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    JobSpec job = SmallVlmJob();
    job.cluster.num_nodes = 2;
    job.parallel.pp = static_cast<int32_t>(2 + 2 * seed);
    ASSERT_OK_AND_ASSIGN(
        const OrchestrationProblem problem,
        MakeOrchestrationProblem(job, RandomBatch(seed, 300, 6), nullptr));
    ASSERT_OK_AND_ASSIGN(const partition::OrchestrationAnswer answer,
                         partition::Orchestrate(problem));
    const double best = Exhaustive(problem);
    EXPECT_NEAR(answer.seconds(), best, 1e-9 * best) << seed;
  }
}

TEST(ComparePlacementsTest, EmulatesWhatTheFormulationForetells) {
  JobSpec job = SmallVlmJob();
  job.cluster.num_nodes = 2;
  job.parallel = {.pp = 4, .dp = 4};
  ASSERT_OK_AND_ASSIGN(const PlacementComparison found,
                       ComparePlacements(job, RandomBatch(1, 400, 6), nullptr));
  const double emulated = ToSeconds(found.disaggregated);
  EXPECT_GT(emulated, 0.5 * found.answer.seconds());
  EXPECT_LT(emulated, 2.0 * found.answer.seconds());
  EXPECT_GT(found.megatron, kZero);
  EXPECT_GT(found.colocated, kZero);
  EXPECT_GT(found.own_strategy, kZero);
  EXPECT_EQ(found.best_colocated(),
            std::min(found.colocated, found.own_strategy));
  EXPECT_EQ(found.disaggregate(), found.disaggregated < found.best_colocated());
  EXPECT_LE(found.answer.gpus(), 16);
}

TEST(ComparePlacementsTest, SaysWhatIsMissing) {
  JobSpec job = SmallVlmJob();
  job.model.modules.resize(1);
  job.model.edges.clear();
  EXPECT_THAT(ComparePlacements(job, RandomBatch(1, 100, 6), nullptr),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("has no backbone")));
  EXPECT_THAT(
      ComparePlacements(SmallVlmJob(), {}, nullptr),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("sample")));
}

}  // namespace
}  // namespace pipeloom::planner
