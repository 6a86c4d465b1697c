#include "partition/batching/epochs.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partition/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::RandomMixedBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

// Every sample has a number of tokens of its own, far from the others'.
BatchMetadata NumberedBatch(int64_t samples) {
  BatchMetadata batch;
  for (int64_t s = 0; s < samples; ++s) {
    batch.samples.push_back({.text_tokens = 10 + s});
  }
  return batch;
}

JobSpec TinyJob(int32_t microbatches) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = microbatches;
  job.training.microbatch_tokens = 100;
  job.parallel.dp = 1;
  job.cluster.num_nodes = 1;
  return job;
}

std::vector<int64_t> Tokens(const BatchMetadata& batch, int64_t begin,
                            int64_t end) {
  std::vector<int64_t> tokens;
  for (const SampleId s : batch.samples.ids()) {
    if (s.value() >= begin && s.value() < end) {
      tokens.push_back(batch.samples[s].text_tokens);
    }
  }
  return tokens;
}

TEST(EpochsTest, EveryEpochHasAllSamplesInAnOrderOfItsOwn) {
  const BatchMetadata batch = NumberedBatch(40);
  const BatchMetadata three = ShuffledEpochs(batch, 7, 3);
  ASSERT_EQ(three.samples.size(), 120);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t e = 0; e < 3; ++e) {
    epochs.push_back(Tokens(three, 40 * e, 40 * (e + 1)));
    std::vector<int64_t> sorted = epochs.back();
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, Tokens(batch, 0, 40)) << "epoch " << e;
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(epochs[0], Tokens(batch, 0, 40));
  EXPECT_EQ(Tokens(ShuffledEpochs(batch, 7, 2), 0, 80), Tokens(three, 0, 80));
  EXPECT_NE(Tokens(ShuffledEpochs(batch, 8, 1), 0, 40), epochs[0]);
}

TEST(EpochsTest, StepsConsumeTheShuffledStreamInOrder) {
  for (const int64_t samples : {1, 3, 17, 90}) {
    for (const int32_t microbatches : {1, 4, 9}) {
      const JobSpec job = TinyJob(microbatches);
      const BatchMetadata batch = NumberedBatch(samples);
      const auto steps = PackShuffledSteps(job, batch, 5, 12);
      ASSERT_TRUE(steps.ok()) << steps.status();
      ASSERT_EQ(steps->size(), 12u);
      std::vector<int64_t> seen;
      for (const PackedStep& step : *steps) {
        // Never short, however few samples there are.
        EXPECT_EQ(step.packed[0].size(), static_cast<size_t>(microbatches))
            << samples << " samples";
        for (const SampleId s : step.samples.samples.ids()) {
          EXPECT_EQ(batch.samples[step.piece_of[s]], step.samples.samples[s]);
          seen.push_back(step.samples.samples[s].text_tokens);
        }
      }
      const auto count = static_cast<int64_t>(seen.size());
      EXPECT_EQ(seen, Tokens(ShuffledEpochs(batch, 5, count / samples + 1), 0,
                             count));
    }
  }
}

TEST(EpochsTest, PiecesOfLongSamplesKnowTheirSource) {
  JobSpec job = TinyJob(6);
  const BatchMetadata batch = RandomMixedBatch(3, 12);
  const auto steps = PackShuffledSteps(job, batch, 1, 20);
  ASSERT_TRUE(steps.ok()) << steps.status();
  for (const PackedStep& step : *steps) {
    for (const SampleId s : step.samples.samples.ids()) {
      if (s.value() >= step.num_samples) continue;
      EXPECT_EQ(batch.samples[step.piece_of[s]], step.samples.samples[s]);
    }
  }
}

TEST(EpochsTest, AStopRequestEndsThePackingOfAllSteps) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THAT(PackShuffledSteps(TinyJob(2), NumberedBatch(9), 1, 1'000'000'000,
                                stop.get_token())
                  .status(),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

TEST(EpochsTest, AnEmptyBatchIsAnErrorOfItsStep) {
  EXPECT_THAT(
      PackShuffledSteps(TinyJob(2), BatchMetadata(), 1, 1).status(),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("step 0")));
}

}  // namespace
}  // namespace pipeloom::partition
