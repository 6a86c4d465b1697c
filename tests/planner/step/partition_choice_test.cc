#include "planner/step/partition_choice.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/step/rival_plans.h"
#include "planner/step/sample_steps.h"
#include "planner/strategies/classic.h"
#include "planner/strategies/pipeloom_strategy.h"
#include "planner/strategies/registry.h"
#include "planner/strategy_abilities.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;

// Gives the first stage of a module, by default of each, nearly all layers.
Partition Uneven(Partition partition, ModuleId only = {}) {
  std::map<ModuleId, std::vector<Stage*>> stages;
  for (Stage& stage : partition.stages) stages[stage.module].push_back(&stage);
  for (auto& [module, of] : stages) {
    if (!only.is_none() && module != only) continue;
    int32_t layers = 0;
    for (const Stage* stage : of) layers += stage->num_layers;
    int32_t next = of.front()->first_layer.value();
    for (size_t i = 0; i < of.size(); ++i) {
      const auto others = static_cast<int32_t>(of.size()) - 1;
      of[i]->first_layer = LayerId(next);
      of[i]->num_layers = i == 0 ? layers - others : 1;
      next += of[i]->num_layers;
    }
  }
  return partition;
}

// Runs the first layer of each stage as a stage of its own.
Partition SplitStages(const Partition& partition) {
  Partition more = partition;
  more.stages.clear();
  for (const Stage& stage : partition.stages) {
    more.stages.push_back(stage);
    if (stage.num_layers == 1) continue;
    Stage rest = stage;
    rest.first_layer = LayerId(stage.first_layer.value() + 1);
    --rest.num_layers;
    more.stages[StageId(more.stages.size() - 1)].num_layers = 1;
    more.stages.push_back(rest);
  }
  return more;
}

class PartitionChoiceTest : public ::testing::Test {
 protected:
  PartitionChoiceTest()
      : job_(SmallVlmJob()), costs_(job_), sample_(RandomBatch(1, 200, 3)) {
    auto rule = MakeStrategy("dip").value()->MakePartition(costs_, sample_, {});
    PIPELOOM_CHECK(rule.ok());
    rule_ = *std::move(rule);
    uneven_ = Uneven(rule_);
    PIPELOOM_CHECK(ValidatePartition(uneven_, job_.model).ok());
  }
  size_t Choose(const std::vector<Partition>& partitions,
                const PartitionChoiceOptions& options = {}) {
    const auto chosen =
        ChoosePartition(*strategy_, costs_, sample_, partitions, options);
    PIPELOOM_CHECK(chosen.ok());
    return *chosen;
  }

  const JobSpec job_;
  const emulator::StageCostModel costs_;
  const BatchMetadata sample_;
  const std::unique_ptr<Strategy> strategy_ = MakePipeloom();
  Partition rule_{};
  Partition uneven_{};
};

TEST_F(PartitionChoiceTest, TheFasterOneIsChosenWhereverItStands) {
  ASSERT_NE(rule_, uneven_);
  EXPECT_EQ(Choose({uneven_, rule_}), 1u);
  EXPECT_EQ(Choose({rule_, uneven_}), 0u);
  EXPECT_EQ(Choose({uneven_, uneven_, rule_}), 2u);
}

TEST_F(PartitionChoiceTest, TheFirstStaysUnlessAnotherIsSurelyFaster) {
  EXPECT_EQ(Choose({rule_, rule_}), 0u);
  EXPECT_EQ(Choose({rule_}), 0u);
}

// Fifteen steps of texts and one of images. One partition is faster on texts,
// the other on images: the few steps that are judged first do not show which is
// faster on average, all sixteen do.
TEST_F(PartitionChoiceTest, AllStepsDecideWhereAFewDifferMuch) {
  JobSpec job = SmallVlmJob();
  job.training.microbatch_samples = 1;
  const emulator::StageCostModel costs(job);
  const auto sample_with = [&](size_t images) {
    BatchMetadata sample;
    for (int32_t i = 0; i < 16 * job.training.microbatches; ++i) {
      SampleMetadata s{.text_tokens = 1500};
      if (i < job.training.microbatches) {
        s.images.assign(images, {.width = 448, .height = 448});
      }
      sample.samples.push_back(s);
    }
    return sample;
  };
  const Partition for_images = Uneven(rule_, ModuleId(1));
  const Partition for_texts = Uneven(rule_, ModuleId(0));
  const auto choose = [&](size_t images, int64_t work) {
    return ChoosePartition(*strategy_, costs, sample_with(images),
                           {for_images, for_texts}, {.work = work})
        .value();
  };
  EXPECT_EQ(choose(/*images=*/9, /*work=*/3'000'000), 1u);
  EXPECT_EQ(choose(/*images=*/9, /*work=*/60'000), 0u);
  EXPECT_EQ(choose(/*images=*/20, /*work=*/3'000'000), 0u);
}

TEST_F(PartitionChoiceTest, MoreThanThreeAreJudgedWhereThatIsCheap) {
  const std::vector<Partition> four = {uneven_, uneven_, uneven_, rule_};
  EXPECT_EQ(Choose(four), 3u);
  EXPECT_EQ(Choose(four, {.work = 100'000}), 0u);
}

TEST_F(PartitionChoiceTest, OfEqualOnesTheOneWithFewerTasksIsChosen) {
  const Partition more = SplitStages(rule_);
  ASSERT_THAT(ValidatePartition(more, job_.model), testing::IsOk());
  EXPECT_EQ(Choose({uneven_, more}), 1u);
  EXPECT_EQ(Choose({uneven_, more, rule_}), 2u);
}

// A partition with too many tasks for a search may be chosen by its quick
// plans. Only the first such partition is judged, unless all have too many.
TEST_F(PartitionChoiceTest, TheFirstLargeOneIsJudgedByQuickPlans) {
  const Partition large = SplitStages(rule_);
  const Partition slow = SplitStages(uneven_);
  ASSERT_THAT(ValidatePartition(large, job_.model), testing::IsOk());
  ASSERT_THAT(ValidatePartition(slow, job_.model), testing::IsOk());
  const auto tasks_of = [&](const Partition& partition) {
    const auto pool = StepPool(costs_, sample_);
    PIPELOOM_CHECK(pool.ok());
    const auto microbatches = partition::SplitMicrobatches(
        job_, pool->front().step, /*replica=*/0, partition);
    PIPELOOM_CHECK(microbatches.ok());
    return partition::MostTasks(*microbatches, partition);
  };
  const int64_t most = tasks_of(uneven_);
  ASSERT_GT(tasks_of(large), most);
  ASSERT_GT(tasks_of(slow), most);
  EXPECT_EQ(Choose({uneven_, large}, {.many_tasks = most}), 1u);
  EXPECT_EQ(Choose({uneven_, slow, large}), 2u);
  EXPECT_EQ(Choose({uneven_, slow, large}, {.many_tasks = most}), 0u);
  EXPECT_EQ(
      Choose({uneven_, slow, large}, {.many_tasks = tasks_of(uneven_) - 1}),
      2u);
}

TEST_F(PartitionChoiceTest, QuickTimeIsThatOfTheFastestQuickPlan) {
  const auto pool = StepPool(costs_, sample_);
  ASSERT_THAT(pool, testing::IsOk());
  PlanInput input;
  input.packed = &pool->front().step;
  input.budget.max_evaluations = 4;
  PreparedJob job{
      .strategy = strategy_.get(), .costs = &costs_, .partition = uneven_};
  const auto quick = QuickTime(job, input);
  ASSERT_THAT(quick, testing::IsOk());
  const auto* const others =
      dynamic_cast<const StartsFromOthers*>(strategy_.get());
  ASSERT_NE(others, nullptr);
  const auto rivals = others->QuickRivals(uneven_);
  const auto plan = QuickPlan(rivals, {}, job, input);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(*quick, plan->predicted.step_time());
  const auto judged = JudgedTime(job, input);
  ASSERT_THAT(judged, testing::IsOk());
  EXPECT_LE(*judged, *quick);

  const auto megatron = MakeStrategy("megatron").value();
  job.strategy = megatron.get();
  EXPECT_TRUE(absl::IsNotFound(QuickTime(job, input).status()));
}

TEST_F(PartitionChoiceTest, TheNumberOfThreadsChangesNothing) {
  std::vector<Partition> partitions = {uneven_};
  for (const char* name : {"megatron", "megatron-tuned", "optimus"}) {
    auto partition =
        MakeStrategy(name).value()->MakePartition(costs_, sample_, {});
    if (partition.ok()) partitions.push_back(*std::move(partition));
  }
  partitions.push_back(rule_);
  const size_t chosen = Choose(partitions);
  EXPECT_NE(chosen, 0u);
  for (const int32_t threads : {2, 8}) {
    EXPECT_EQ(Choose(partitions, {.threads = threads}), chosen);
  }
}

TEST_F(PartitionChoiceTest, WhereJudgingTakesTooLongTheFirstStays) {
  EXPECT_EQ(Choose({uneven_, rule_}, {.work = 100}), 0u);
}

TEST_F(PartitionChoiceTest, AStopEndsIt) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(ChoosePartition(*strategy_, costs_, sample_, {rule_, uneven_},
                            {.stop = stop.get_token()})
                .status()
                .code(),
            absl::StatusCode::kCancelled);
  for (const char* name :
       {"pipeloom", "megatron-tuned", "nnscaler", "disttrain"}) {
    EXPECT_EQ(PrepareJob(*MakeStrategy(name).value(), costs_, sample_,
                         stop.get_token())
                  .status()
                  .code(),
              absl::StatusCode::kCancelled)
        << name;
  }
}

// The clock stands at the end from the beginning, so that the search stops at
// its first answer.
TEST(QuickPlanTest, UnderADeadlineAPlanIsNotSlowerThanAClassicOrder) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const JobSpec job = SmallVlmJob();
    const emulator::StageCostModel costs(job);
    const BatchMetadata batch = RandomBatch(seed, 200, 3);
    const auto strategy = MakePipeloom();
    const auto interleaved = MakeInterleaved();
    ASSERT_OK_AND_ASSIGN(const Partition partition,
                         interleaved->MakePartition(costs, batch, {}));
    ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                         partition::PackStep(job, batch, 0));
    PlanInput input;
    input.packed = &packed;
    input.budget.threads = 2;
    input.budget.spent = [] { return 1.0; };
    input.budget.expired = [] { return true; };
    ASSERT_OK_AND_ASSIGN(const PlanResult classic,
                         PlanStep({.strategy = interleaved.get(),
                                   .costs = &costs,
                                   .partition = partition},
                                  input));
    ASSERT_OK_AND_ASSIGN(const PlanResult own,
                         PlanStep({.strategy = strategy.get(),
                                   .costs = &costs,
                                   .partition = partition},
                                  input));
    EXPECT_LE(own.predicted.step_time(), classic.predicted.step_time());
    EXPECT_EQ(own.plan.schedule, "pipeloom");
  }
}

// Rivals for tight memory plan no other step.
TEST(QuickPlanTest, TightRivalsPlanOnlyStepsWhoseMemoryIsTight) {
  JobSpec job = SmallVlmJob();
  const BatchMetadata batch = RandomBatch(1, 200, 3);
  const auto one = MakeStrategy("1f1b").value();
  const auto plan = [&]() -> std::optional<PlanResult> {
    const emulator::StageCostModel costs(job);
    const auto partition = one->MakePartition(costs, batch, {});
    const auto packed = partition::PackStep(job, batch, 0);
    PIPELOOM_CHECK(partition.ok() && packed.ok());
    PlanInput input;
    input.packed = &*packed;
    std::vector<std::unique_ptr<Strategy>> tight;
    tight.push_back(MakeStrategy("dip-interleave").value());
    return QuickPlan(
        {}, tight,
        {.strategy = tight[0].get(), .costs = &costs, .partition = *partition},
        input);
  };
  EXPECT_FALSE(plan().has_value());
  // Until memory is tight.
  bool planned = false;
  for (int lowered = 0; lowered < 200; ++lowered) {
    job.training.memory_limit = Bytes(job.MemoryLimit().count() * 98 / 100);
    planned = plan().has_value();
    if (planned) break;
  }
  EXPECT_TRUE(planned);
}

// A tenth of the time is over when the step is built.
TEST(QuickPlanTest, ClassicOrdersHaveTimeForLargerStepsThanDips) {
  JobSpec job = SmallVlmJob();
  job.training.microbatch_samples = 1;  // One microbatch is much larger.
  const emulator::StageCostModel costs(job);
  BatchMetadata batch;
  for (int32_t i = 0; i < job.training.microbatches; ++i) {
    batch.samples.push_back({.text_tokens = i == 5 ? 2000 : 300});
  }
  ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                       partition::PackStep(job, batch, 0));
  PlanInput input;
  input.packed = &packed;
  bool begun = false;
  input.budget.spent = [&] { return std::exchange(begun, true) ? 0.1 : 0; };
  input.budget.expired = [] { return false; };
  ASSERT_OK_AND_ASSIGN(Partition partition,
                       MakeDualPipeV()->MakePartition(costs, batch, {}));
  const auto plan = [&](const std::vector<const char*>& names) {
    begun = false;
    std::vector<std::unique_ptr<Strategy>> rivals;
    for (const char* name : names) rivals.push_back(MakeStrategy(name).value());
    const PreparedJob prepared{
        .strategy = rivals[0].get(), .costs = &costs, .partition = partition};
    return QuickPlan(rivals, {}, prepared, input);
  };
  const auto dual = plan({"dualpipe-v"});
  const auto zero = plan({"zb-v"});
  const auto best = plan({"dualpipe-v", "zb-v"});
  ASSERT_TRUE(dual.has_value() && zero.has_value() && best.has_value());
  EXPECT_EQ(best->predicted.step_time(),
            std::min(dual->predicted.step_time(), zero->predicted.step_time()));
  partition.sub_microbatch_instances[ModuleId(0)] = 2;
  EXPECT_FALSE(plan({"dip-interleave"}).has_value());
}

// A share of the time is over when the step is built.
TEST(StartTest, WholeMicrobatchesHaveTimeForAStartFromNothing) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  const BatchMetadata batch = RandomBatch(1, 200, 3);
  const auto strategy = MakePipeloom();
  ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                       partition::PackStep(job, batch, 0));
  const auto evaluations = [&](const char* of, double share) {
    PlanInput input;
    input.packed = &packed;
    input.budget.max_evaluations = 2;
    input.budget.spent = [share] { return share; };
    PreparedJob prepared{.strategy = strategy.get(), .costs = &costs};
    prepared.partition =
        MakeStrategy(of).value()->MakePartition(costs, batch, {}).value();
    return PlanStep(prepared, input).value().evaluations;
  };
  EXPECT_GT(evaluations("1f1b", 0.038), evaluations("1f1b", 0.042));
  EXPECT_EQ(evaluations("dip", 0.038), evaluations("dip", 0.042));
  EXPECT_GT(evaluations("dip", 0.01), evaluations("dip", 0.014));
}

}  // namespace
}  // namespace pipeloom::planner
