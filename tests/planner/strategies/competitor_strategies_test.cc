#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/disttrain.h"
#include "planner/strategies/optimus.h"
#include "planner/strategies/registry.h"
#include "planner/strategies/representative_step.h"
#include "tests/planner/uneven_pipeline.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::pipeloom::testing::UnevenPipeline;
using ::pipeloom::testing::UniformGraph;
using ::testing::HasSubstr;

absl::StatusOr<PlanResult> Plan(const JobSpec& job, const std::string& schedule,
                                const BatchMetadata& batch) {
  return PlanFirstStep(job, batch, {.schedule = schedule, .evaluations = 50});
}

class EveryRuleTest : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryRuleTest, GivesACheckedPlanForEveryMixOfTheBatch) {
  const JobSpec job = SmallVlmJob();
  for (const int max_images : {0, 1, 6}) {
    SCOPED_TRACE(max_images);
    ASSERT_OK_AND_ASSIGN(
        const PlanResult result,
        Plan(job, GetParam(), RandomBatch(7, 200, max_images)));
    EXPECT_THAT(ValidateExecutionPlan(result.plan), IsOk());
    EXPECT_LE(result.lower_bound, result.predicted.step_time());
  }
}

TEST_P(EveryRuleTest, TakesAnyNumberOfMicrobatchesAndFrozenModules) {
  for (const char* frozen : {"", "encoder", "backbone"}) {
    for (const int microbatches : {1, 2, 3, 5, 7}) {
      SCOPED_TRACE(::testing::Message()
                   << frozen << " frozen, " << microbatches);
      JobSpec job = SmallVlmJob();
      job.training.microbatches = microbatches;
      if (*frozen != 0) job.training.frozen_modules = {frozen};
      ASSERT_OK_AND_ASSIGN(const PlanResult result,
                           Plan(job, GetParam(), RandomBatch(3, 200, 4)));
      EXPECT_EQ(result.microbatches.num_microbatches, microbatches);
    }
  }
}

TEST_P(EveryRuleTest, KeepsAnyLimitOrSaysThatNothingFits) {
  JobSpec job = SmallVlmJob();
  const BatchMetadata batch = RandomBatch(5, 200, 4);
  ASSERT_OK_AND_ASSIGN(const PlanResult roomy, Plan(job, GetParam(), batch));
  Bytes peak;
  for (const Bytes bytes : roomy.peak_bytes()) peak = std::max(peak, bytes);
  for (int percent = 100; percent > 0; percent -= 10) {
    SCOPED_TRACE(percent);
    job.training.memory_limit = Bytes(peak.count() / 100 * percent);
    const auto result = Plan(job, GetParam(), batch);
    if (!result.ok()) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted)
          << result.status();
      continue;
    }
    for (const Bytes bytes : result->peak_bytes()) {
      EXPECT_LE(bytes, job.training.memory_limit);
    }
  }
}

TEST_P(EveryRuleTest, TakesAnyNumberOfRanksOrSaysHowManyItNeeds) {
  for (const int pp : {1, 2, 3, 7, 12}) {
    SCOPED_TRACE(pp);
    JobSpec job = SmallVlmJob();
    job.parallel.pp = pp;
    job.cluster.gpus_per_node = 16;
    const auto result = Plan(job, GetParam(), RandomBatch(3, 200, 4));
    if (pp == 1 && std::string(GetParam()) == "disttrain") {
      EXPECT_THAT(result,
                  FailsWith(absl::StatusCode::kInvalidArgument,
                            HasSubstr("2 units (encoder, backbone) ranks of "
                                      "its own; the job has pp 1")));
      continue;
    }
    EXPECT_THAT(result, IsOk());
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryRuleTest,
                         ::testing::Values("zb-h1", "zb-2p", "zb-v", "v-half",
                                           "v-min", "dualpipe-v", "nnscaler",
                                           "optimus", "disttrain"),
                         [](const auto& strategy) {
                           std::string name = strategy.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Stages are recomputed, so it is between backward and weight gradient that
// they hold most: delayed weight gradients do not fit and go earlier.
TEST(SplitBackwardTest, WeightGradientsGoEarlierWhereMemoryIsShort) {
  const StageGraph kept =
      UniformGraph({.ranks = 4, .microbatches = 12, .split_backward = true});
  IdVector<TaskId, Task> tasks = kept.tasks();
  for (Task& task : tasks) {
    if (task.pass == Pass::kForward) task.alloc = Bytes(100);
    if (task.pass == Pass::kBackward) task.alloc = Bytes(900);
  }
  IdVector<RankId, RankSpec> ranks = kept.ranks();
  for (RankSpec& rank : ranks) rank.memory.limit = Bytes(1500);
  ASSERT_OK_AND_ASSIGN(
      const StageGraph limited,
      StageGraph::Create("recomputed", ranks, kept.module_names(), tasks,
                         kept.edges()));
  for (RankSpec& rank : ranks) rank.memory.limit = Bytes(0);
  ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy("zb-h1"));
  Partition partition;
  partition.num_ranks = 4;
  partition.num_segments = 1;
  for (int32_t r = 0; r < 4; ++r) {
    partition.stages.push_back({.rank = RankId(r), .segment = SegmentId(0)});
  }
  ASSERT_OK_AND_ASSIGN(
      const SearchResult free,
      strategy->MakeSchedule(limited.WithRanks(ranks), partition, 1, {}));
  EXPECT_GT(free.schedule.peak[RankId(3)], Bytes(1500));
  ASSERT_OK_AND_ASSIGN(const SearchResult tight,
                       strategy->MakeSchedule(limited, partition, 1, {}));
  EXPECT_THAT(ValidateSchedule(limited, tight.schedule), IsOk());
  EXPECT_GT(tight.schedule.makespan(), free.schedule.makespan());
}

TEST(RepresentativeStepTest, WeighsLayersByTheirTimeInTheMedianStep) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  // Steps without images, with many and with some; the last is the median.
  BatchMetadata sample;
  for (const int max_images : {0, 9, 3}) {
    const BatchMetadata part = RandomBatch(1, 400, max_images);
    for (const SampleMetadata& s : part.samples) sample.samples.push_back(s);
  }
  ASSERT_OK_AND_ASSIGN(const auto mixed,
                       RepresentativeStep::Create(costs, sample));
  ASSERT_OK_AND_ASSIGN(const auto text, RepresentativeStep::Create(
                                            costs, RandomBatch(1, 400, 0)));
  ASSERT_EQ(mixed.units().size(), text.units().size());
  for (size_t i = 0; i < text.units().size(); ++i) {
    const bool encoder = text.units()[i].module == ModuleId(0);
    EXPECT_EQ(text.units()[i].weight == 0, encoder) << i;
    EXPECT_GT(mixed.units()[i].weight, 0) << i;
  }
  EXPECT_THAT(
      RepresentativeStep::Create(costs, BatchMetadata()),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
}

TEST(NnScalerTest, ItsCutIsNoSlowerOnTheMedianStepThanMegatrons) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const BatchMetadata sample = RandomBatch(seed, 400, 6);
    ASSERT_OK_AND_ASSIGN(const auto step,
                         RepresentativeStep::Create(costs, sample));
    ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy("nnscaler"));
    ASSERT_OK_AND_ASSIGN(const Partition searched,
                         strategy->MakePartition(costs, sample, {}));
    EXPECT_THAT(ValidatePartition(searched, job.model), IsOk());
    EXPECT_EQ(searched.num_segments, 1);
    ASSERT_OK_AND_ASSIGN(const auto time,
                         step.PlannedTime(*strategy, searched));
    ASSERT_TRUE(time.has_value());
    for (const auto weight : {partition::LayerWeight::kCount,
                              partition::LayerWeight::kParameters}) {
      ASSERT_OK_AND_ASSIGN(const Partition even,
                           partition::ConcatenatedPartition(job, 1, weight));
      ASSERT_OK_AND_ASSIGN(const auto even_time,
                           step.PlannedTime(*strategy, even));
      ASSERT_TRUE(even_time.has_value());
      EXPECT_LE(*time, *even_time);
    }
  }
}

TEST(DistTrainTest, EveryRankIsOfOneUnit) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy("disttrain"));
  ASSERT_OK_AND_ASSIGN(
      const Partition partition,
      strategy->MakePartition(costs, RandomBatch(1, 200, 6), {}));
  EXPECT_THAT(ValidatePartition(partition, job.model), IsOk());
  std::vector<std::set<ModuleId>> modules(4);
  for (const Stage& stage : partition.stages) {
    modules[static_cast<size_t>(stage.rank.value())].insert(stage.module);
  }
  for (const auto& of_rank : modules) EXPECT_EQ(of_rank.size(), 1u);
}

// A line of `ranks` equal stages; microbatch m's passes take sizes[m] ms.
StageGraph Line(int32_t ranks, const std::vector<double>& sizes) {
  const StageGraph uniform = UniformGraph(
      {.ranks = ranks, .microbatches = static_cast<int32_t>(sizes.size())});
  IdVector<TaskId, Task> tasks = uniform.tasks();
  for (Task& task : tasks) {
    task.duration =
        Milliseconds(sizes[static_cast<size_t>(task.microbatch.value())] *
                     (task.pass == Pass::kForward ? 1 : 2));
  }
  auto graph =
      StageGraph::Create("line", uniform.ranks(), uniform.module_names(),
                         std::move(tasks), uniform.edges());
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

TEST(DistTrainTest, TheSmallestGoesFirstAndTheNextSmallestLast) {
  const StageGraph graph = Line(3, {5, 9, 1, 4, 2, 7, 3});
  const std::vector<int32_t> order =
      DistTrainMicrobatchOrder(VirtualPipeline(graph));
  ASSERT_EQ(order.size(), 7u);
  EXPECT_EQ(order.front(), 2);
  EXPECT_EQ(order[5], 6);
  EXPECT_EQ(order[6], 4);
}

TEST(DistTrainTest, ReorderingIsNeverSlowerThanTheGivenOrder) {
  int faster = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const auto p = static_cast<int32_t>(random.Between(1, 6));
    const auto m = static_cast<int32_t>(random.Between(1, 16));
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << " p " << p << " m " << m);
    const StageGraph graph =
        UnevenPipeline(seed, {.ranks = p,
                              .microbatches = m,
                              .split_backward = random.Below(2) == 0});
    const VirtualPipeline pipeline(graph);
    std::vector<int32_t> order = DistTrainMicrobatchOrder(pipeline);
    std::sort(order.begin(), order.end());
    std::vector<int32_t> all(static_cast<size_t>(m));
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(order, all);
    ASSERT_OK_AND_ASSIGN(RankOrders reordered, DistTrainOrders(pipeline));
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeBaseline(graph, std::move(reordered)));
    EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
    ASSERT_OK_AND_ASSIGN(RankOrders given, OneFOneBOrders(pipeline));
    ASSERT_OK_AND_ASSIGN(const Schedule before,
                         TimeBaseline(graph, std::move(given)));
    EXPECT_LE(schedule.makespan(), before.makespan());
    faster += schedule.makespan() < before.makespan();
  }
  EXPECT_GT(faster, 50);
}

// A job's step as Optimus sees it.
struct OptimusStep {
  Partition partition{};
  StageGraph graph{};
};
OptimusStep MakeOptimusStep(uint64_t seed, int max_images,
                            int microbatches = 8) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = microbatches;
  const emulator::StageCostModel costs(job);
  const BatchMetadata batch = RandomBatch(seed, 400, max_images);
  OptimusStep step;
  auto partition = MakeOptimus()->MakePartition(costs, batch, {});
  PIPELOOM_CHECK(partition.ok());
  step.partition = *std::move(partition);
  const auto packed = partition::PackStep(job, batch, 0);
  PIPELOOM_CHECK(packed.ok());
  const auto microbatch_split =
      partition::SplitMicrobatches(job, *packed, 0, step.partition);
  PIPELOOM_CHECK(microbatch_split.ok());
  auto built =
      partition::BuildStageGraph(costs, step.partition, *microbatch_split, {});
  PIPELOOM_CHECK(built.ok());
  step.graph = std::move(built->graph);
  return step;
}

TEST(OptimusTest, EncodersAreInASegmentOfTheirOwnOverAllRanks) {
  const Partition partition = MakeOptimusStep(1, 6).partition;
  EXPECT_THAT(ValidatePartition(partition, SmallVlmJob().model), IsOk());
  EXPECT_EQ(partition.num_segments, 3);
  std::set<RankId> encoder_ranks;
  for (const Stage& stage : partition.stages) {
    EXPECT_EQ(stage.module == ModuleId(0), stage.segment == SegmentId(0));
    if (stage.segment == SegmentId(0)) encoder_ranks.insert(stage.rank);
  }
  EXPECT_EQ(encoder_ranks.size(), 4u);
}

TEST(OptimusTest, TextOnlyIsInterleaved1F1B) {
  const OptimusStep step = MakeOptimusStep(1, 0);
  Partition shifted = step.partition;
  for (Stage& stage : shifted.stages) {
    stage.segment = SegmentId(std::max(0, stage.segment.value() - 1));
  }
  ASSERT_OK_AND_ASSIGN(const RankOrders orders,
                       OptimusOrders(step.graph, step.partition));
  ASSERT_OK_AND_ASSIGN(const RankOrders interleaved,
                       InterleavedOrders(VirtualPipeline(step.graph, shifted)));
  EXPECT_EQ(orders, interleaved);
}

// The same step with encoder passes of a share of their time.
StageGraph WithEncoderShare(const StageGraph& graph, int32_t divisor) {
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (Task& task : tasks) {
    if (task.module == ModuleId(0)) task.duration /= divisor;
  }
  auto scaled =
      StageGraph::Create("small encoders", graph.ranks(), graph.module_names(),
                         std::move(tasks), graph.edges());
  PIPELOOM_CHECK(scaled.ok());
  return *std::move(scaled);
}

// Against all encoder forwards, then the backbone, then all encoder backwards:
// never slower, and faster where encoder passes fit into the backbone's waits.
TEST(OptimusTest, EncodersRunInTheWaitsOfTheBackbone) {
  int faster = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const int32_t divisor : {1, 4, 16}) {
      SCOPED_TRACE(::testing::Message() << seed << " divisor " << divisor);
      const OptimusStep step = MakeOptimusStep(seed, 6);
      const StageGraph graph = WithEncoderShare(step.graph, divisor);
      ASSERT_OK_AND_ASSIGN(RankOrders orders,
                           OptimusOrders(graph, step.partition));
      const auto part = [&](TaskId t) {
        const Task& task = graph.task(t);
        if (task.module != ModuleId(0)) return 1;
        return task.pass == Pass::kForward ? 0 : 2;
      };
      RankOrders parts = orders;
      for (std::vector<TaskId>& order : parts) {
        std::stable_sort(order.begin(), order.end(),
                         [&](TaskId a, TaskId b) { return part(a) < part(b); });
      }
      ASSERT_OK_AND_ASSIGN(const Schedule mixed,
                           TimeBaseline(graph, std::move(orders)));
      EXPECT_THAT(ValidateSchedule(graph, mixed), IsOk());
      ASSERT_OK_AND_ASSIGN(const Schedule apart,
                           TimeBaseline(graph, std::move(parts)));
      EXPECT_LE(mixed.makespan(), apart.makespan());
      faster += mixed.makespan() < apart.makespan();
      // Some small passes are hidden, so they cost less than a rank's share.
      const StageGraph free = WithEncoderShare(step.graph, 1'000'000'000);
      ASSERT_OK_AND_ASSIGN(RankOrders alone_orders,
                           OptimusOrders(free, step.partition));
      ASSERT_OK_AND_ASSIGN(const Schedule alone,
                           TimeBaseline(free, std::move(alone_orders)));
      IdVector<RankId, Duration> load(graph.num_ranks());
      for (const Task& task : graph.tasks()) {
        if (task.module == ModuleId(0)) load[task.rank] += task.duration;
      }
      if (divisor < 16) continue;
      EXPECT_LT(mixed.makespan() - alone.makespan(),
                *std::max_element(load.begin(), load.end()));
    }
  }
  EXPECT_GE(faster, 5);
}

TEST(OptimusTest, OrdersAreLegalForAnyNumberOfMicrobatches) {
  for (int microbatches = 1; microbatches <= 9; ++microbatches) {
    SCOPED_TRACE(microbatches);
    const OptimusStep step =
        MakeOptimusStep(static_cast<uint64_t>(microbatches), 6, microbatches);
    ASSERT_OK_AND_ASSIGN(RankOrders orders,
                         OptimusOrders(step.graph, step.partition));
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeBaseline(step.graph, std::move(orders)));
    EXPECT_THAT(ValidateSchedule(step.graph, schedule), IsOk());
  }
}

}  // namespace
}  // namespace pipeloom::planner
