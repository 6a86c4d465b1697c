#include "planner/layout/partition_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "base/random.h"
#include "partition/placement/recipe.h"
#include "planner/orders/gpipe.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/baseline_strategy.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

class PartitionSearchTest : public ::testing::Test {
 protected:
  absl::StatusOr<PartitionSearchResult> Search(
      const JobSpec& job, const PartitionSearchOptions& options) {
    const emulator::StageCostModel costs(job);
    return SearchPartition(*strategy_, costs, sample_, options);
  }

  const std::unique_ptr<Strategy> strategy_ = *MakeStrategy("pipeloom");
  BatchMetadata sample_ = RandomBatch(1, 300, 6);
};

TEST_F(PartitionSearchTest, IsNeverWorseThanDipsRuleAndKeepsItsEffort) {
  for (const int32_t partitions : {1, 5, 40}) {
    const JobSpec job = SmallVlmJob();
    ASSERT_OK_AND_ASSIGN(const PartitionSearchResult found,
                         Search(job, {.partitions = partitions}));
    EXPECT_THAT(ValidatePartition(found.partition, job.model), IsOk());
    EXPECT_LE(found.step_time, found.rule_time);
    EXPECT_LE(found.tried, partitions);
  }
}

TEST_F(PartitionSearchTest, ItsStartStaysUnlessAnotherIsBetter) {
  JobSpec job = SmallVlmJob();
  for (LayerSpec& layer : job.model.modules[ModuleId(0)].layers) {
    if (layer.kind == LayerKind::kTransformer) layer.ffn.hidden *= 4;
  }
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult rule,
                       Search(job, {.partitions = 1}));
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult good,
                       Search(job, {.partitions = 20}));
  ASSERT_NE(good.partition, rule.partition);
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult kept,
                       Search(job, {.partitions = 2, .start = good.partition}));
  EXPECT_EQ(kept.partition, good.partition);
  EXPECT_EQ(kept.tried, 2);
}

// The encoder is slow for its few layers and the rule's cut is not the best.
TEST_F(PartitionSearchTest, BeatsDipsRuleWhereThereIsSomethingToGain) {
  JobSpec job = SmallVlmJob();
  for (LayerSpec& layer : job.model.modules[ModuleId(0)].layers) {
    if (layer.kind == LayerKind::kTransformer) layer.ffn.hidden *= 4;
  }
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult found, Search(job, {}));
  EXPECT_LT(found.step_time, found.rule_time);
}

TEST_F(PartitionSearchTest, GivesTheSameForAnyNumberOfThreads) {
  const JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult one,
                       Search(job, {.partitions = 30, .threads = 1}));
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult three,
                       Search(job, {.partitions = 30, .threads = 3}));
  EXPECT_EQ(one.partition, three.partition);
  EXPECT_EQ(one.step_time, three.step_time);
  EXPECT_EQ(one.tried, three.tried);
}

TEST_F(PartitionSearchTest, KeepsTheJobsRules) {
  JobSpec job = SmallVlmJob();
  job.partition.together = {
      {.layers = {{.module = "encoder", .first = -2, .count = 2},
                  {.module = "backbone", .first = 0, .count = 3}}},
      {.layers = {{.module = "backbone", .first = -1}}, .rank = -1}};
  job.training.sub_microbatch_sizes = {{"encoder", 5}};
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult found,
                       Search(job, {.partitions = 40}));
  EXPECT_THAT(partition::CheckPartitionRules(job, found.partition), IsOk());
  EXPECT_EQ(found.partition.sub_microbatch_instances[ModuleId(0)], 5);
}

// One of 16 steps has far more images than the others: the partitions that are
// best for the others need more memory for it than there is. (With these seeds
// there are limits that only some partitions keep.)
TEST_F(PartitionSearchTest, OneHeavyStepForbidsWhatTheLightOnesPrefer) {
  JobSpec job = SmallVlmJob();
  const BatchMetadata texts = RandomBatch(2, 400, 1);
  const BatchMetadata images = RandomBatch(5, 60, 24);
  const auto steps_of = [&](const BatchMetadata& batch, int32_t weight) {
    const emulator::StageCostModel costs(job);
    auto pool = StepPool(costs, batch);
    std::vector<WeighedStep> steps = Stratify(*std::move(pool), 1);
    steps.front().weight = weight;
    return steps;
  };
  const std::vector<WeighedStep> light = steps_of(texts, 15);
  const std::vector<WeighedStep> heavy = steps_of(images, 1);
  sample_ = texts;
  for (const SampleMetadata& s : images.samples) sample_.samples.push_back(s);
  JudgedSteps both = {.steps = light};
  both.steps.push_back(heavy.front());
  const PartitionSearchOptions options = {.partitions = 20};
  const auto search = [&](const JudgedSteps& steps) {
    const emulator::StageCostModel costs(job);
    return SearchPartitionOn(*strategy_, costs, sample_, steps, options);
  };
  const auto plan = [&](const Partition& partition, const WeighedStep& step) {
    const emulator::StageCostModel costs(job);
    PlanInput input;
    input.packed = &step.step;
    input.budget.max_evaluations = 20;
    return PlanStep(
        {.strategy = &*strategy_, .costs = &costs, .partition = partition},
        input);
  };
  ASSERT_OK_AND_ASSIGN(const auto roomy, search({.steps = light}));
  ASSERT_OK_AND_ASSIGN(const PlanResult most,
                       plan(roomy.partition, heavy.front()));
  const std::vector<Bytes> peaks = most.peak_bytes();
  const Bytes peak = *std::max_element(peaks.begin(), peaks.end());
  // The first limit, falling, that the light steps' choice breaks.
  bool seen = false;
  for (int share = 400; share > 100 && !seen; share -= 2) {  // In thousandths.
    SCOPED_TRACE(share);
    job.training.memory_limit = Bytes(peak.count() * share / 1000);
    const auto preferred = search({.steps = light});
    const auto found = search(both);
    if (!preferred.ok() || !found.ok()) break;
    if (plan(preferred->partition, heavy.front()).ok()) continue;
    seen = true;
    EXPECT_EQ(found->misfits, 0);
    EXPECT_NE(found->partition, preferred->partition);
    EXPECT_THAT(plan(found->partition, heavy.front()), IsOk());
    const auto time = [&](const Partition& partition) {
      return plan(partition, light.front())->predicted.step_time();
    };
    EXPECT_LE(time(preferred->partition), time(found->partition));
  }
  EXPECT_TRUE(seen);
}

// All of nine partitions are planned on the first step, and all are finalists.
// Those that are far behind on two of eight steps are not planned on the others
// (all on all steps, and five of them once more, would be 121 plans).
TEST_F(PartitionSearchTest, FinalistsFarBehindAreJudgedOnFewSteps) {
  std::atomic<int> plans = 0;
  const BaselineStrategy counted("counted", 1, partition::LayerWeight::kCount,
                                 [&](const VirtualPipeline& pipeline) {
                                   ++plans;
                                   return GPipeOrders(pipeline);
                                 });
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(std::vector<WeighedStep> pool, StepPool(costs, sample_));
  const JudgedSteps steps = {.steps = Stratify(pool, 1),
                             .finals = Stratify(pool, 8)};
  PartitionSearchOptions options = {.partitions = 1};
  ASSERT_THAT(
      SearchPartitionOn(counted, costs, sample_, steps, options).status(),
      IsOk());
  const int each = plans / 17;  // One step, then eight with twice the effort.
  plans = 0;
  options.partitions = 9;
  ASSERT_OK_AND_ASSIGN(
      const PartitionSearchResult found,
      SearchPartitionOn(counted, costs, sample_, steps, options));
  EXPECT_EQ(found.tried, 9);
  EXPECT_LE(plans, each * (9 + 9 * 8));
}

// Steps of few samples differ much, so more of them are judged by.
TEST(StepPoolTest, HasSixteenStepsOrMoreOfFewSamples) {
  const BatchMetadata batch = RandomBatch(3, 20'000, 3);
  for (const int32_t microbatches : {1, 8}) {
    SCOPED_TRACE(microbatches);
    JobSpec job = SmallVlmJob();
    job.training.microbatches = microbatches;
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const std::vector<WeighedStep> pool,
                         StepPool(costs, batch, kMostSteps));
    int64_t samples = 0;
    for (const WeighedStep& s : pool) samples += s.step.num_samples;
    const int64_t before = samples - pool.back().step.num_samples;
    EXPECT_TRUE(AreEnough(pool.size(), samples));
    EXPECT_FALSE(AreEnough(pool.size() - 1, before));
    EXPECT_EQ(pool.size() > 16, microbatches == 1);
    ASSERT_OK_AND_ASSIGN(const std::vector<WeighedStep> few,
                         StepPool(costs, batch));
    EXPECT_EQ(few.size(), 16u);
  }
  EXPECT_TRUE(AreEnough(64, 64));
  EXPECT_FALSE(AreEnough(63, 63));
}

TEST(StratifyTest, StandsForAllStepsAndHasTheHeaviest) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<WeighedStep> pool(static_cast<size_t>(random.Between(1, 20)));
    Duration total{};
    Duration most{};
    Bytes fullest{};
    for (WeighedStep& s : pool) {
      // Most are light, some are ten times as heavy.
      s.work = Microseconds(1) *
               (random.Between(90, 110) * (random.Between(0, 4) == 0 ? 10 : 1));
      s.fullest = Bytes(random.Between(1, 1000));
      total += s.work;
      most = std::max(most, s.work);
      fullest = std::max(fullest, s.fullest);
    }
    for (int32_t count = 1; count <= 8; ++count) {
      const std::vector<WeighedStep> strata = Stratify(pool, count);
      EXPECT_LE(static_cast<int32_t>(strata.size()), count);
      int64_t weights = 0;
      Duration work{};
      bool has_most = false;
      bool has_fullest = false;
      for (const WeighedStep& s : strata) {
        weights += s.weight;
        work += s.work * s.weight;
        has_most = has_most || s.work == most;
        has_fullest = has_fullest || s.fullest == fullest;
      }
      EXPECT_EQ(weights, static_cast<int64_t>(pool.size()));
      EXPECT_TRUE(has_most || count < 2);
      EXPECT_TRUE(has_fullest || count < 4);
      if (count >= 4) {
        EXPECT_NEAR(ToSeconds(work), ToSeconds(total), 0.1 * ToSeconds(total));
      }
    }
  }
}

TEST_F(PartitionSearchTest, AFewStepsAreJoinedByTheirSamplesInOtherOrders) {
  JobSpec job = SmallVlmJob();
  job.parallel.dp = 2;
  job.cluster.num_nodes = 2;
  const emulator::StageCostModel costs(job);
  const auto pool_of = [&](int32_t samples) {
    return StepPool(costs, RandomBatch(5, samples, 4))->size();
  };
  EXPECT_EQ(pool_of(20), 1u);
  EXPECT_EQ(pool_of(300), 16u);
  EXPECT_EQ(pool_of(3000), 16u);
}

// A backbone of 28 blocks; of the pipeline's ranks, each a GPU, the third has
// half the speed.
TEST_F(PartitionSearchTest, ARankOfHalfTheSpeedGetsAboutHalfTheLayers) {
  JobSpec even = SmallVlmJob();
  auto& layers = even.model.modules[ModuleId(1)].layers;
  const LayerSpec block = layers[LayerId(1)];
  const LayerSpec head = layers[LayerId(9)];
  layers.resize(1);
  for (int i = 0; i < 28; ++i) layers.push_back(block);
  layers.push_back(head);
  sample_ = RandomBatch(1, 300, 0);  // Texts: the backbone's alone.
  JobSpec slow = even;
  slow.cluster.slow_gpus = {{.gpu = 2, .factor = 2}};
  const emulator::StageCostModel costs(slow);
  const emulator::StageCostModel even_costs(even);
  ASSERT_OK_AND_ASSIGN(const auto packed, SampleSteps(costs, sample_, 1));
  for (const bool level : {false, true}) {
    SCOPED_TRACE(level);
    const auto build = [&](const emulator::StageCostModel& of) {
      const auto builder =
          partition::PartitionBuilder::Create(of.job(), of, sample_);
      partition::PartitionRecipe recipe;
      recipe.modules.resize(2);
      recipe.level_ranks = level;
      return *builder->Build(recipe);
    };
    const Partition weighed = build(costs);
    const Partition unweighed = build(even_costs);
    const auto blocks = [](const Partition& partition, int32_t rank) {
      int32_t count = 0;
      for (const StageId s : partition.StagesOf(ModuleId(1))) {
        const Stage& stage = partition.stages[s];
        if (stage.rank == RankId(rank)) count += stage.num_layers;
      }
      return count;
    };
    EXPECT_NEAR(blocks(weighed, 2), 0.5 * blocks(weighed, 1), 1);
    EXPECT_NEAR(blocks(unweighed, 2), blocks(unweighed, 1), 1);
    const auto time = [&](const Partition& partition) {
      PlanInput input;
      input.packed = &packed.front();
      input.budget.max_evaluations = 50;
      const auto planned = PlanStep(
          {.strategy = &*strategy_, .costs = &costs, .partition = partition},
          input);
      return ToSeconds(planned->predicted.step_time());
    };
    // 7 blocks at half the speed are 14; 8 at full speed are 8.
    EXPECT_LT(time(weighed), 0.75 * time(unweighed));
  }
}

TEST_F(PartitionSearchTest, StopsWhenAskedWithItsBestSoFar) {
  std::stop_source stop;
  PartitionSearchOptions options;
  options.stop = stop.get_token();
  options.progress = [&](int32_t, Duration) { stop.request_stop(); };
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult found,
                       Search(SmallVlmJob(), options));
  EXPECT_EQ(found.tried, 1);
  EXPECT_EQ(found.step_time, found.rule_time);
}

TEST_F(PartitionSearchTest, StoppedBeforeItsFirstPlanMakesItOnlyIfNeeded) {
  std::stop_source stop;
  stop.request_stop();
  PartitionSearchOptions options;
  options.stop = stop.get_token();
  ASSERT_OK_AND_ASSIGN(const PartitionSearchResult found,
                       Search(SmallVlmJob(), options));
  EXPECT_EQ(found.tried, 1);
  EXPECT_GT(found.step_time, kZero);
  options.needs_answer = false;
  EXPECT_THAT(Search(SmallVlmJob(), options),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

TEST_F(PartitionSearchTest, SaysWhatIsWrong) {
  JobSpec job = SmallVlmJob();
  job.training.memory_limit = Bytes(1 << 20);
  EXPECT_THAT(Search(job, {.partitions = 3}),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        HasSubstr("none of the 3 partitions tried fits")));
  sample_ = {};
  EXPECT_THAT(Search(SmallVlmJob(), {}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("the sample of batches")));
}

}  // namespace
}  // namespace pipeloom::planner
