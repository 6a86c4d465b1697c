#include "partition/batching/balance_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>
#include <sstream>
#include <string>

#include "formats/job/spec_loader.h"
#include "partition/batching/load_meter.h"
#include "partition/batching/loss_shares.h"
#include "partition/placement/placement.h"
#include "tests/partition/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomMixedBatch;
using ::pipeloom::testing::SmallVlmJob;

std::multiset<SampleId> SamplesOf(const PackedStep& step) {
  std::multiset<SampleId> all;
  for (const auto& replica : step.packed) {
    for (const auto& microbatch : replica) {
      all.insert(microbatch.begin(), microbatch.end());
    }
  }
  return all;
}

// max over mean of what the replicas' samples cost.
double SpreadOf(const JobSpec& job, const SampleCosts& costs,
                const PackedStep& step, double* largest_sample) {
  double most = 0;
  double total = 0;
  *largest_sample = 0;
  for (const auto& replica : step.packed) {
    double load = 0;
    for (const auto& microbatch : replica) {
      for (const SampleId id : microbatch) {
        double cost = 0;
        for (const int64_t c : costs.Of(job.model, step.samples.samples[id])) {
          cost += static_cast<double>(c);
        }
        load += cost;
        *largest_sample = std::max(*largest_sample, cost);
      }
    }
    most = std::max(most, load);
    total += load;
  }
  const double mean = total / static_cast<double>(step.packed.size());
  *largest_sample /= mean;
  return most / mean;
}

TEST(BalanceStepTest, KeepsTheSamplesOfTheStepAndTheLimitsOfMicrobatches) {
  int balanced_any = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const JobSpec job = RandomJob(seed);
    const BatchMetadata batch = RandomMixedBatch(seed, 120);
    const auto step = PackStep(job, batch, 0);
    if (!step.ok()) continue;
    const emulator::StageCostModel stage_costs(job);
    ASSERT_OK_AND_ASSIGN(const SampleCosts costs,
                         SampleCosts::Create(job, stage_costs, batch));
    const PackedStep balanced = BalanceStep(job, costs, *step);
    ASSERT_EQ(SamplesOf(balanced), SamplesOf(*step)) << seed;
    ASSERT_EQ(balanced.packed.size(), step->packed.size()) << seed;
    balanced_any += balanced.packed != step->packed;
    const LoadMeter meter(job);
    auto most = static_cast<size_t>(job.training.microbatches);
    for (const auto& replica : step->packed) {
      most = std::max(most, replica.size());
    }
    for (const auto& replica : balanced.packed) {
      EXPECT_FALSE(replica.empty()) << seed;
      EXPECT_LE(replica.size(), most) << seed;
      for (const auto& microbatch : replica) {
        ASSERT_FALSE(microbatch.empty()) << seed;
        Load load;
        for (const SampleId id : microbatch) {
          load += meter.Of(balanced.samples.samples[id]);
        }
        EXPECT_TRUE(microbatch.size() == 1 || meter.Fits(load)) << seed;
      }
    }
    double largest = 0;
    double before_largest = 0;
    EXPECT_LE(SpreadOf(job, costs, balanced, &largest),
              SpreadOf(job, costs, *step, &before_largest) + 1e-9)
        << seed;
  }
  EXPECT_GT(balanced_any, 30);
}

// The shares of all replicas are the totals, whatever the assignment and the
// partition: the loss is that of the unsplit batch.
TEST(BalanceStepTest, LossSharesAddUpToTheStepHoweverItIsSplit) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const JobSpec job = RandomJob(seed);
    const BatchMetadata batch = RandomMixedBatch(seed, 80);
    const auto in_order = PackStep(job, batch, 0);
    if (!in_order.ok()) continue;
    const emulator::StageCostModel stage_costs(job);
    ASSERT_OK_AND_ASSIGN(const SampleCosts costs,
                         SampleCosts::Create(job, stage_costs, batch));
    ASSERT_OK_AND_ASSIGN(Partition partition,
                         SeparatedPartition(job, stage_costs, batch));
    const PackedStep balanced = BalanceStep(job, costs, *in_order);
    std::vector<LossTotal> totals;
    for (const PackedStep* step : {&*in_order, &balanced}) {
      for (const int64_t size : {0, 1, 3}) {
        for (int64_t& s : partition.sub_microbatch_instances) s = size;
        std::vector<LossTotal> sums;
        for (size_t r = 0; r < step->packed.size(); ++r) {
          ASSERT_OK_AND_ASSIGN(
              const Microbatches microbatches,
              SplitMicrobatches(job, *step, static_cast<int32_t>(r),
                                partition));
          ExecutionPlan plan;
          SetLoss(job.model, *step, microbatches, &plan);
          if (totals.empty()) totals = plan.loss_totals;
          EXPECT_EQ(plan.loss_totals, totals) << seed;
          if (sums.empty()) {
            sums = totals;
            for (LossTotal& sum : sums) sum.tokens = sum.instances = 0;
          }
          for (const LossShare& share : plan.loss_shares) {
            for (LossTotal& sum : sums) {
              if (sum.module != share.module) continue;
              sum.tokens += share.tokens;
              sum.instances += share.instances;
            }
          }
        }
        EXPECT_EQ(sums, totals) << seed << " size " << size;
      }
    }
  }
}

// A sample's cost is counted in patches: an image of 16 backbone tokens weighs
// what its 256 patches cost the encoder.
TEST(SampleCostsTest, AnImageCostsTheEncoderAndTheBackbone) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel stage_costs(job);
  ASSERT_OK_AND_ASSIGN(
      const SampleCosts costs,
      SampleCosts::Create(job, stage_costs, RandomBatch(1, 200, 4)));
  const auto text = costs.Of(job.model, {.text_tokens = 100});
  const auto image =
      costs.Of(job.model, {.text_tokens = 100, .images = {{224, 224}}});
  EXPECT_EQ(text[ModuleId(0)], 0);
  EXPECT_GT(text[ModuleId(1)], 0);
  EXPECT_GT(image[ModuleId(0)], 0);
  EXPECT_GT(image[ModuleId(1)], text[ModuleId(1)]);
  // Attention is quadratic.
  const auto longer = costs.Of(job.model, {.text_tokens = 1000});
  EXPECT_GT(longer[ModuleId(1)], 10 * text[ModuleId(1)]);
}

// The shipped batch of real images: replicas are even to 2 % unless one sample
// alone is more than its share allows.
TEST(BalanceStepTest, RealImageTextLoadsAreEvenOverReplicas) {
  const auto read = [](const std::string& path) -> absl::StatusOr<std::string> {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) return absl::NotFoundError(path);
    return text.str();
  };
  const std::string data = PIPELOOM_SOURCE_DIR "/workloads";
  ASSERT_OK_AND_ASSIGN(JobSpec job,
                       formats::LoadJob("qwen2.5-vl-7b", data, read));
  const std::string path = data + "/batches/image_text.jsonl";
  ASSERT_OK_AND_ASSIGN(const std::string text, read(path));
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                       formats::ParseBatch(text, path, nullptr));
  for (const int32_t replicas : {8, 64}) {
    job.parallel = {.tp = 1, .pp = 1, .dp = replicas};
    job.training.microbatches = 512 / replicas;
    const emulator::StageCostModel stage_costs(job);
    ASSERT_OK_AND_ASSIGN(const SampleCosts costs,
                         SampleCosts::Create(job, stage_costs, batch));
    ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
    double largest = 0;
    const double before = SpreadOf(job, costs, step, &largest);
    const PackedStep balanced = BalanceStep(job, costs, step);
    const double after = SpreadOf(job, costs, balanced, &largest);
    RecordProperty("before_" + std::to_string(replicas),
                   std::to_string(before));
    RecordProperty("after_" + std::to_string(replicas), std::to_string(after));
    EXPECT_LE(after, std::max(1.02, largest)) << replicas;
    EXPECT_LT(after, before) << replicas;
    EXPECT_LT(largest, 1.02) << "a sample dominates; the bar says nothing";
  }
}

}  // namespace
}  // namespace pipeloom::partition
