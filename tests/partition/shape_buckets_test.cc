#include "partition/batching/shape_buckets.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/random.h"
#include "emulator/stage/stage_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "partition/batching/loss_shares.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "tests/partition/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::testing::ElementsAre;

const ModuleId kEncoder(0);
const ModuleId kBackbone(1);

Microbatches StepOf(ModuleId module, const std::vector<int64_t>& tokens) {
  Microbatches step;
  step.num_microbatches = static_cast<int32_t>(tokens.size());
  for (const int64_t n : tokens) {
    step.sub_microbatches.push_back(
        {.module = module,
         .microbatch = MicrobatchId(step.sub_microbatches.size()),
         .shape = {.instances = 2,
                   .tokens = n,
                   .output_tokens = n,
                   .squared_tokens = 100.0 * static_cast<double>(n),
                   .sequences = static_cast<double>(n) / 100,
                   .longest = 100}});
  }
  return step;
}

JobSpec JobWith(std::vector<int64_t> backbone) {
  JobSpec job = testing::SmallVlmJob();
  job.training.shape_buckets = {{"backbone", std::move(backbone)}};
  return job;
}

TEST(ShapeBucketsTest, PadsToTheSmallestThatFits) {
  const JobSpec job = JobWith({512, 1024});
  Microbatches step = StepOf(kBackbone, {300, 512, 513, 1025});
  const Microbatches before = step;
  PadToBuckets(job, &step);
  const auto sub = [&](int32_t i) {
    return step.sub_microbatches[SubMicrobatchId(i)];
  };
  EXPECT_EQ(sub(0).bucket, 512);
  EXPECT_EQ(sub(0).shape.tokens, 512);
  EXPECT_EQ(sub(0).data().tokens, 300);
  // 212 tokens of padding in sequences of at most 100, as the longest is.
  EXPECT_DOUBLE_EQ(sub(0).shape.squared_tokens, 100.0 * 300 + 100.0 * 212);
  EXPECT_DOUBLE_EQ(sub(0).shape.sequences, 3 + 2.12);
  // Padding hands nothing on, and belongs to no sample.
  EXPECT_EQ(sub(0).shape.output_tokens, 300);
  EXPECT_EQ(sub(0).shape.instances, 2);
  EXPECT_EQ(sub(1).bucket, 512);
  EXPECT_EQ(sub(1).shape, before.sub_microbatches[SubMicrobatchId(1)].shape);
  EXPECT_EQ(sub(2).bucket, 1024);
  EXPECT_EQ(sub(3).bucket, 0);
  EXPECT_TRUE(sub(3).shape.host_launched);
  EXPECT_EQ(sub(3).shape.tokens, 1025);
  Microbatches encoder = StepOf(kEncoder, {300});
  const Microbatches same = encoder;
  PadToBuckets(job, &encoder);
  EXPECT_EQ(encoder, same);
}

TEST(ShapeBucketsTest, EveryCopyOfAModuleIsPadded) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  job.cluster.num_nodes = 8;
  job.module_parallelism = {{.module = "encoder", .tp = 2}};
  ASSERT_EQ(job.CopiesOf(kEncoder), 2);
  job.training.shape_buckets = {{"encoder", {256}}};
  Microbatches step = StepOf(kEncoder, {300});
  SubMicrobatch& sub = step.sub_microbatches[SubMicrobatchId(0)];
  sub.shape.share_tokens = 200;  // The other copy has 100.
  sub.shape.share_squared = 20000;
  PadToBuckets(job, &step);
  EXPECT_EQ(sub.bucket, 256);
  EXPECT_EQ(sub.shape.tokens, 512);
  EXPECT_EQ(sub.shape.share_tokens, 256);
  EXPECT_DOUBLE_EQ(sub.shape.share_squared, 20000 + 56.0 * 56);
}

// Returns the fewest tokens, padding included, of sub-microbatches of these
// sizes, with sizes rounded up to `multiple`: tries every set of at most
// `count` buckets.
int64_t FewestTokens(std::vector<int64_t> sizes, int32_t count,
                     int64_t multiple) {
  for (int64_t& size : sizes)
    size = (size + multiple - 1) / multiple * multiple;
  std::sort(sizes.begin(), sizes.end());
  std::vector<int64_t> different = sizes;
  different.erase(std::unique(different.begin(), different.end()),
                  different.end());
  int64_t best = std::numeric_limits<int64_t>::max();
  for (uint32_t set = 0; set < 1u << different.size(); ++set) {
    if (__builtin_popcount(set) > count) continue;
    int64_t sum = 0;
    for (const int64_t size : sizes) {
      int64_t bucket = 0;
      for (size_t i = 0; i < different.size() && bucket == 0; ++i) {
        if ((set >> i & 1) != 0 && different[i] >= size) bucket = different[i];
      }
      sum = bucket == 0 ? best : sum + bucket;
      if (sum >= best) break;
    }
    best = std::min(best, sum);
  }
  return best;
}

TEST(ShapeBucketsTest, ChoosesTheSetWithTheLeastPadding) {
  const JobSpec job = testing::SmallVlmJob();
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::vector<int64_t> sizes;
    for (int64_t n = random.Between(1, 12); n > 0; --n) {
      sizes.push_back(random.Between(1, 2000));
    }
    const auto count = static_cast<int32_t>(random.Between(1, 4));
    const std::vector<Microbatches> steps = {StepOf(kBackbone, sizes)};
    const auto chosen = ChooseShapeBuckets(job, steps, count);
    ASSERT_EQ(chosen.size(), 1u);
    EXPECT_EQ(chosen[0].module, "backbone");
    EXPECT_LE(chosen[0].tokens.size(), static_cast<size_t>(count));
    JobSpec with = job;
    with.training.shape_buckets = chosen;
    ASSERT_THAT(ValidateJobSpec(with), testing::IsOk());
    Microbatches padded = steps[0];
    PadToBuckets(with, &padded);
    int64_t sum = 0;
    for (const SubMicrobatch& sub : padded.sub_microbatches) {
      EXPECT_GT(sub.bucket, 0);
      sum += sub.shape.tokens;
    }
    EXPECT_EQ(sum, FewestTokens(sizes, count, 64)) << seed;
  }
}

TEST(ShapeBucketsTest, ManySizesShareAFewBuckets) {
  JobSpec job = testing::SmallVlmJob();
  Random random(3);
  std::vector<int64_t> sizes;
  for (int i = 0; i < 5000; ++i) sizes.push_back(random.Between(1, 1 << 22));
  const auto chosen =
      ChooseShapeBuckets(job, std::vector{StepOf(kBackbone, sizes)}, 8);
  ASSERT_EQ(chosen.size(), 1u);
  EXPECT_EQ(chosen[0].tokens.size(), 8u);
  EXPECT_GE(chosen[0].tokens.back(),
            *std::max_element(sizes.begin(), sizes.end()));
}

TEST(ShapeBucketsTest, PaddingIsPricedButIsNoWorkOfTheModel) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    JobSpec job = testing::RandomJob(seed);
    const BatchMetadata batch = testing::RandomMixedBatch(seed, 60);
    const auto step = PackStep(job, batch, 0);
    if (!step.ok()) continue;
    const emulator::StageCostModel costs(job);
    const auto partition = SeparatedPartition(job, costs, batch);
    if (!partition.ok()) continue;
    ASSERT_OK_AND_ASSIGN(const Microbatches plain,
                         SplitMicrobatches(job, *step, 0, *partition));
    JobSpec with = job;
    with.training.shape_buckets =
        ChooseShapeBuckets(job, std::vector{plain}, 1);
    ASSERT_OK_AND_ASSIGN(const Microbatches padded,
                         SplitMicrobatches(with, *step, 0, *partition));
    ASSERT_THAT(ValidateMicrobatches(padded, job.model), testing::IsOk());
    ASSERT_OK_AND_ASSIGN(const Microbatches data,
                         SplitUnpadded(with, *step, 0, *partition));
    EXPECT_EQ(data, plain);
    const emulator::StageCostModel model(with);
    ASSERT_OK_AND_ASSIGN(const BuiltGraph before,
                         BuildStageGraph(costs, *partition, plain));
    ASSERT_OK_AND_ASSIGN(const BuiltGraph after,
                         BuildStageGraph(model, *partition, padded));
    EXPECT_NEAR(after.model_flops.count, before.model_flops.count,
                1e-9 * before.model_flops.count);
    ASSERT_EQ(after.graph.num_tasks(), before.graph.num_tasks());
    for (const TaskId t : after.graph.task_ids()) {
      EXPECT_GE(after.graph.task(t).duration, before.graph.task(t).duration);
    }
    ExecutionPlan plan;
    plan.graph = after.graph;
    plan.padded_shapes = PaddedShapesOf(with, padded, after.graph);
    for (const PaddedShape& shape : plan.padded_shapes) {
      EXPECT_THAT(with.BucketsOf(shape.module), ElementsAre(shape.bucket));
      EXPECT_LE(shape.tokens, shape.bucket * with.CopiesOf(shape.module));
    }
    SetLoss(job.model, *step, padded, &plan);
    ExecutionPlan unpadded;
    SetLoss(job.model, *step, plain, &unpadded);
    EXPECT_EQ(plan.loss_shares, unpadded.loss_shares);
  }
}

}  // namespace
}  // namespace pipeloom::partition
