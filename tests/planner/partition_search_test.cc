#include "planner/partition_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "partition/recipe.h"
#include "planner/plan_step.h"
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
