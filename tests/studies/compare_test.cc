// Several strategies on the same steps.
#include <algorithm>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/strategies/registry.h"
#include "studies/compare/compare_strategies.h"
#include "studies/job/planner_input.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

StudyContext Context() {
  StudyContext context;
  context.read = [](const std::string& path) {
    return formats::ReadFile(path);
  };
  return context;
}

class CompareTest : public ::testing::Test {
 protected:
  void SetUp() override {
    JobOptions options;
    options.microbatches = 4;
    options.memory_limit = 200 * kGibibyte;  // The replayed plan fits, too.
    options.data_dir = PIPELOOM_SOURCE_DIR "/workloads";
    ASSERT_OK_AND_ASSIGN(input_, LoadJobInput("dip-vlm-s", options, context_));
    ASSERT_THAT(LoadBatch("image_text", options.data_dir, context_, &input_),
                IsOk());
    input_.replicas = 1;
    ASSERT_OK_AND_ASSIGN(packed_, PackSteps(input_, 2, context_));
    costs_ =
        std::make_unique<emulator::StageCostModel>(input_.job, CostsOf(input_));
    options_.search.evaluations = 20;
  }
  absl::StatusOr<std::vector<StrategyRow>> Compare() {
    return CompareStrategies(input_, packed_, *costs_, options_, context_);
  }

  StudyContext context_ = Context();
  JobInput input_{};
  std::vector<partition::PackedStep> packed_{};
  std::unique_ptr<emulator::StageCostModel> costs_{};
  CompareOptions options_{};
};

TEST_F(CompareTest, RowsAreInTheOrderAskedForAndTheBestStaticOneIsNamed) {
  options_.strategies = {"dip", "megatron", "1f1b", "static"};
  ASSERT_OK_AND_ASSIGN(const std::vector<StrategyRow> rows, Compare());
  ASSERT_EQ(rows.size(), 4u);
  for (size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(rows[r].schedule, options_.strategies[r]);
    ASSERT_THAT(rows[r].status, IsOk()) << rows[r].schedule;
    EXPECT_EQ(rows[r].steps.size(), 2u);
    EXPECT_FALSE(rows[r].given_partition);
  }
  const Duration megatron = MeansOf(rows[1].steps).step_time;
  const Duration one_f_one_b = MeansOf(rows[2].steps).step_time;
  EXPECT_EQ(MegatronTime(rows), megatron);
  // Neither dip nor a replayed plan is static, however fast it is.
  EXPECT_EQ(BestStaticTime(rows), std::min(megatron, one_f_one_b));
  EXPECT_EQ(BestStatic(rows), &rows[megatron < one_f_one_b ? 1 : 2]);
  EXPECT_FALSE(MeanP90(rows[0]).has_value());
}

TEST_F(CompareTest, ThroughputCountsTheTokensOfTheBatchAndTheModelsWork) {
  JobOptions job;
  job.data_dir = PIPELOOM_SOURCE_DIR "/workloads";
  ASSERT_OK_AND_ASSIGN(input_, LoadJobInput("llama3-8b", job, context_));
  ASSERT_THAT(LoadBatch("text", job.data_dir, context_, &input_), IsOk());
  const auto gpus = static_cast<double>(input_.job.parallel.num_gpus());
  for (const int32_t replicas : {1, 2}) {
    SCOPED_TRACE(replicas);
    input_.replicas = replicas;
    ASSERT_OK_AND_ASSIGN(packed_, PackSteps(input_, 1, context_));
    costs_ =
        std::make_unique<emulator::StageCostModel>(input_.job, CostsOf(input_));
    options_.strategies = {"1f1b"};
    ASSERT_OK_AND_ASSIGN(const std::vector<StrategyRow> rows, Compare());
    const StepMeans means = MeansOf(rows[0].steps);
    const double seconds = ToSeconds(means.step_time);
    const auto samples = static_cast<int32_t>(rows[0].steps[0].num_samples);
    double tokens = 0;
    for (int32_t i = 0; i < samples; ++i) {
      tokens +=
          static_cast<double>(input_.batch.samples[SampleId(i)].text_tokens);
    }
    const Throughput rates = ThroughputOf(input_.job, rows[0].steps);
    EXPECT_NEAR(rates.samples_per_second * seconds,
                static_cast<double>(samples), 1e-6);
    // One replica stands for both, which have unequal samples.
    EXPECT_NEAR(rates.tokens_per_second * seconds / tokens, 1,
                replicas == 2 ? 1e-9 : 0.1);
    EXPECT_DOUBLE_EQ(rates.tokens_per_gpu * gpus, rates.tokens_per_second);
    EXPECT_NEAR(
        rates.flops_per_gpu /
            (means.mfu * input_.job.cluster.device.bf16.flops_per_second),
        1, 1e-9);
  }
  EXPECT_EQ(ThroughputOf(input_.job, {}).tokens_per_second, 0);
}

TEST_F(CompareTest, AGivenPartitionIsForThoseThatTakeAnyOrForAll) {
  ASSERT_OK_AND_ASSIGN(const auto dip, planner::MakeStrategy("dip"));
  ASSERT_OK_AND_ASSIGN(const planner::PreparedJob own,
                       PrepareOwnPartition(input_, *dip, *costs_));
  options_.partition = own.partition;
  options_.strategies = {"dip", "gpipe"};
  ASSERT_OK_AND_ASSIGN(std::vector<StrategyRow> rows, Compare());
  EXPECT_TRUE(rows[0].given_partition);
  EXPECT_FALSE(rows[1].given_partition);
  options_.partition_for_all = true;
  ASSERT_OK_AND_ASSIGN(rows, Compare());
  EXPECT_TRUE(rows[1].given_partition);
  EXPECT_EQ(BestStatic(rows), rows[1].status.ok() ? &rows[1] : nullptr);
}

TEST_F(CompareTest, WrongNamesAndStopsAreErrors) {
  options_.strategies = {"fastest"};
  EXPECT_THAT(Compare(), FailsWith(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("fastest")));
  std::stop_source stop;
  context_.stop = stop.get_token();
  stop.request_stop();
  options_.strategies = {"1f1b"};
  EXPECT_THAT(Compare(),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("")));
}

}  // namespace
}  // namespace pipeloom::studies
