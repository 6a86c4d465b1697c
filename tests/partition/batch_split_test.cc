#include "partition/batching/batch_split.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/token_count.h"
#include "tests/partition/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomMixedBatch;
using ::pipeloom::testing::SmallExpertJob;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

BatchMetadata TextBatch(const std::vector<int64_t>& tokens) {
  BatchMetadata batch;
  for (const int64_t n : tokens) batch.samples.push_back({.text_tokens = n});
  return batch;
}

std::vector<SampleId> Ids(std::initializer_list<int32_t> values) {
  std::vector<SampleId> ids;
  for (const int32_t value : values) ids.emplace_back(value);
  return ids;
}

// SmallVlmJob with microbatches of 100 tokens.
JobSpec TinyJob(int32_t microbatches, int32_t replicas) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = microbatches;
  job.training.microbatch_tokens = 100;
  job.parallel.dp = replicas;
  job.cluster.num_nodes = replicas;
  return job;
}

Partition Whole(const JobSpec& job, int64_t instances = 0) {
  Partition partition;
  partition.sub_microbatch_instances.assign(job.model.modules.size(),
                                            instances);
  return partition;
}

WorkShape TotalWork(const JobSpec& job, const SampleMetadata& sample) {
  WorkShape sum;
  for (const WorkShape& shape : SampleWork(job.model, sample)) sum += shape;
  return sum;
}

TEST(PackStepTest, FillsMicrobatchesInOrderUpToTheirTokens) {
  const BatchMetadata batch = TextBatch({40, 60, 1, 99, 50, 51, 100});
  ASSERT_OK_AND_ASSIGN(const PackedStep step,
                       PackStep(TinyJob(8, 1), batch, 0));
  ASSERT_EQ(step.packed.size(), 1u);
  EXPECT_THAT(step.packed[0], ElementsAre(Ids({0, 1}), Ids({2, 3}), Ids({4}),
                                          Ids({5}), Ids({6})));
  EXPECT_EQ(step.num_samples, 7);
  EXPECT_EQ(step.num_split_samples, 0);
}

TEST(PackStepTest, DealsMicrobatchesToReplicasInTurnAndStopsWhenFull) {
  const BatchMetadata batch = TextBatch(std::vector<int64_t>(20, 60));
  ASSERT_OK_AND_ASSIGN(const PackedStep step,
                       PackStep(TinyJob(2, 3), batch, 5));
  ASSERT_EQ(step.packed.size(), 3u);
  EXPECT_THAT(step.packed[0], ElementsAre(Ids({0}), Ids({3})));
  EXPECT_THAT(step.packed[1], ElementsAre(Ids({1}), Ids({4})));
  EXPECT_THAT(step.packed[2], ElementsAre(Ids({2}), Ids({5})));
  EXPECT_EQ(step.num_samples, 6);
  EXPECT_EQ(step.piece_of[SampleId(0)], SampleId(5));
  EXPECT_EQ(step.samples.samples.size(), 6);
}

TEST(PackStepTest, TheNextStepBeginsWhereThisOneEnded) {
  const JobSpec job = TinyJob(3, 2);
  const BatchMetadata batch = RandomBatch(1, 500, 0);
  int64_t next = 0;
  int steps = 0;
  while (next < batch.samples.size()) {
    const auto step = PackStep(job, batch, next);
    if (!step.ok()) break;  // Fewer samples than replicas at the end.
    ASSERT_GT(step->num_samples, 0);
    EXPECT_EQ(step->piece_of[SampleId(0)].value(), next);
    next += step->num_samples;
    ++steps;
  }
  EXPECT_GE(next, batch.samples.size() - 1);
  EXPECT_GT(steps, 20);
}

TEST(PackStepTest, ShortLastStepGivesEveryReplicaSomething) {
  // All three fit in one microbatch, but there are two replicas.
  ASSERT_OK_AND_ASSIGN(const PackedStep step,
                       PackStep(TinyJob(4, 2), TextBatch({9, 9, 9}), 0));
  EXPECT_THAT(step.packed[0], ElementsAre(Ids({0, 1})));
  EXPECT_THAT(step.packed[1], ElementsAre(Ids({2})));
  EXPECT_THAT(PackStep(TinyJob(4, 2), TextBatch({9, 9, 9}), 2),
              FailsWith(kInvalid, HasSubstr("parallel.dp is 2")));
}

TEST(PackStepTest, ReplicasThatMeetHaveAsManyMicrobatchesEach) {
  JobSpec job = SmallExpertJob();
  const BatchMetadata batch = TextBatch({2000, 2000, 1000, 700});
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
  EXPECT_THAT(step.packed[0], ElementsAre(Ids({0}), Ids({2})));
  EXPECT_THAT(step.packed[1], ElementsAre(Ids({1}), Ids({3})));
  job.parallel.ep = 1;
  ASSERT_OK_AND_ASSIGN(const PackedStep apart, PackStep(job, batch, 0));
  EXPECT_THAT(apart.packed[0], ElementsAre(Ids({0}), Ids({2, 3})));
  EXPECT_THAT(apart.packed[1], ElementsAre(Ids({1})));
}

TEST(PackStepTest, AnEmptyOrUsedUpBatchIsAnError) {
  EXPECT_THAT(PackStep(TinyJob(1, 1), {}, 0),
              FailsWith(kInvalid, HasSubstr("it is empty")));
  EXPECT_THAT(PackStep(TinyJob(1, 1), TextBatch({1, 2}), 2),
              FailsWith(kInvalid, HasSubstr("no sample is left at 2")));
  EXPECT_THAT(PackStep(TinyJob(1, 1), TextBatch({1, 2}), -1),
              FailsWith(kInvalid, HasSubstr("no sample is left at -1")));
  EXPECT_THAT(PackStep(TinyJob(1, 1), TextBatch({0, 0}), 0),
              FailsWith(kInvalid, HasSubstr("is work for any module")));
}

TEST(PackStepTest, CutsTextLongerThanAMicrobatch) {
  ASSERT_OK_AND_ASSIGN(const PackedStep step,
                       PackStep(TinyJob(8, 1), TextBatch({30, 250, 40}), 0));
  // 30 | 100 | 100 | 50 + 40.
  EXPECT_THAT(step.packed[0],
              ElementsAre(Ids({0}), Ids({3}), Ids({4}), Ids({5, 2})));
  EXPECT_EQ(step.num_samples, 3);
  EXPECT_EQ(step.num_split_samples, 1);
  EXPECT_EQ(step.piece_of[SampleId(4)], SampleId(1));
  EXPECT_EQ(step.samples.samples[SampleId(5)].text_tokens, 50);
}

TEST(CutsMoreTest, OnlyAJobOfLongerMicrobatchesCutsLess) {
  const JobSpec job = TinyJob(8, 1);
  JobSpec halves = job;
  halves.training.microbatch_tokens = 50;
  JobSpec fifths = job;
  fifths.training.microbatch_tokens = 20;
  const BatchMetadata batch = TextBatch({30, 60, 250, 40});
  ASSERT_OK_AND_ASSIGN(const PackedStep whole, PackStep(job, batch, 0));
  ASSERT_OK_AND_ASSIGN(const PackedStep half, PackStep(halves, batch, 0));
  EXPECT_FALSE(CutsMore(whole, job));
  EXPECT_FALSE(CutsMore(whole, halves));
  EXPECT_FALSE(CutsMore(half, halves));
  EXPECT_FALSE(CutsMore(half, fifths));
  EXPECT_TRUE(CutsMore(half, job)) << "60 tokens are cut, 250 into more";
  // More steps of the same samples cut none of them into more.
  ASSERT_OK_AND_ASSIGN(const PackedStep longer,
                       PackStep(TinyJob(100, 1), batch, 0));
  EXPECT_FALSE(CutsMore(longer, job));
  // A sample that fits is in no pieces, however small the microbatches.
  ASSERT_OK_AND_ASSIGN(const PackedStep fits,
                       PackStep(halves, TextBatch({30, 40, 50}), 0));
  EXPECT_FALSE(CutsMore(fits, job));
}

TEST(PackStepTest, ASampleThatNeedsMoreThanIsLeftBeginsTheNextStep) {
  const BatchMetadata batch = TextBatch({90, 250});
  ASSERT_OK_AND_ASSIGN(const PackedStep first,
                       PackStep(TinyJob(3, 1), batch, 0));
  EXPECT_EQ(first.num_samples, 1);
  // Alone it is given more microbatches than a step has, so that it can go.
  ASSERT_OK_AND_ASSIGN(const PackedStep second,
                       PackStep(TinyJob(2, 1), batch, 1));
  EXPECT_EQ(second.packed[0].size(), 3u);
  EXPECT_EQ(second.num_samples, 1);
}

TEST(PackStepTest, ItemsAreNeverCut) {
  // 16 tokens an image; 10 images and 50 text tokens in microbatches of 100.
  BatchMetadata batch;
  batch.samples.push_back(
      {.text_tokens = 50, .images = std::vector<ImageSize>(10, {224, 224})});
  ASSERT_OK_AND_ASSIGN(const PackedStep step,
                       PackStep(TinyJob(8, 1), batch, 0));
  int64_t images = 0;
  for (const auto& microbatch : step.packed[0]) {
    for (const SampleId id : microbatch) {
      images += static_cast<int64_t>(step.samples.samples[id].images.size());
    }
  }
  EXPECT_EQ(images, 10);
  EXPECT_EQ(step.packed[0].size(), 3u) << "210 tokens";
}

TEST(PackStepTest, OneItemOverTheLimitGetsAMicrobatchOfItsOwn) {
  JobSpec job = TinyJob(8, 1);
  job.training.microbatch_tokens = 10;  // An image is 16 tokens.
  BatchMetadata batch = TextBatch({5, 0, 5});
  batch.samples[SampleId(1)].images = {{224, 224}};
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
  EXPECT_THAT(step.packed[0], ElementsAre(Ids({0}), Ids({1}), Ids({2})));
  EXPECT_EQ(step.num_split_samples, 1);
}

TEST(PackStepTest, KeepsImageAndSecondLimits) {
  JobSpec job = TinyJob(100, 1);
  job.training.microbatch_tokens = 1'000'000;
  job.training.microbatch_images = 8;
  job.training.microbatch_seconds = 16;
  BatchMetadata batch;
  for (int i = 0; i < 30; ++i) {
    batch.samples.push_back(
        {.text_tokens = 1, .videos = {{.frames = 90}}});  // 3 s at 30/s.
  }
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
  EXPECT_EQ(step.packed[0].size(), 6u) << "5 clips are 15 s";
  job.training.microbatch_images = 3;
  ASSERT_OK_AND_ASSIGN(const PackedStep by_count, PackStep(job, batch, 0));
  EXPECT_EQ(by_count.packed[0].size(), 10u);
}

TEST(PackStepTest, MicrobatchesOfOneNumberOfSamplesMakeTheGlobalBatch) {
  JobSpec job = TinyJob(4, 2);
  job.training.microbatch_tokens = 1'000'000;
  job.training.microbatch_samples = 3;
  ASSERT_OK_AND_ASSIGN(
      const PackedStep step,
      PackStep(job, TextBatch(std::vector<int64_t>(100, 7)), 0));
  EXPECT_EQ(step.num_samples, 4 * 2 * 3);
  for (const auto& replica : step.packed) {
    EXPECT_THAT(replica,
                ElementsAre(SizeIs(3), SizeIs(3), SizeIs(3), SizeIs(3)));
  }
}

TEST(PackStepTest, ItemsOfOneSampleAreOneSample) {
  JobSpec job = TinyJob(2, 1);
  job.training.microbatch_tokens = 100'000;
  job.training.microbatch_samples = 1;
  BatchMetadata batch = TextBatch({5, 5});
  batch.samples[SampleId(0)].images = {{224, 224}, {224, 224}, {224, 224}};
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
  EXPECT_EQ(step.num_split_samples, 0);
  EXPECT_THAT(step.packed[0], ElementsAre(Ids({0}), Ids({1})));
}

TEST(PackStepTest, AnAbsurdSampleIsAnError) {
  EXPECT_THAT(PackStep(TinyJob(1, 1), TextBatch({int64_t{1} << 60}), 0),
              FailsWith(kInvalid, HasSubstr("sample 0")));
}

TEST(PackStepTest, AHundredThousandSamplesMakeOneStep) {
  const BatchMetadata batch = RandomBatch(2, 100'000, 4);
  JobSpec job = SmallVlmJob();
  job.training.microbatches = 100'000;
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
  EXPECT_EQ(step.num_samples, 100'000);
  EXPECT_THAT(SplitMicrobatches(job, step, 0, Whole(job, 4)), IsOk());
}

// The quantities that limit a microbatch, counted by separate code.
struct Load {
  int64_t tokens = 0;
  int64_t images = 0;
  double seconds = 0;
  int64_t items = 0;
};
Load LoadOf(const JobSpec& job, const PackedStep& step,
            const std::vector<SampleId>& samples) {
  Load load;
  for (const SampleId id : samples) {
    const SampleMetadata& s = step.samples.samples[id];
    const auto work = SampleWork(job.model, s);
    for (const ModuleId m : job.model.modules.ids()) {
      if (job.model.modules[m].role == ModuleRole::kBackbone) {
        load.tokens += work[m].tokens;
      }
    }
    load.images += static_cast<int64_t>(s.images.size() + s.videos.size());
    load.items += static_cast<int64_t>(s.images.size() + s.videos.size() +
                                       s.audio_seconds.size());
    for (const VideoClip& clip : s.videos) load.seconds += clip.seconds;
    for (const double seconds : s.audio_seconds) load.seconds += seconds;
  }
  return load;
}

TEST(PackStepTest, NeverBreaksALimitLosesATokenOrChangesTheOrder) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const JobSpec job = RandomJob(seed);
    const BatchMetadata batch = RandomMixedBatch(seed, 60);
    const auto packed = PackStep(job, batch, 0);
    ASSERT_THAT(packed, IsOk()) << seed;
    const PackedStep& step = *packed;
    ASSERT_EQ(step.packed.size(), static_cast<size_t>(job.parallel.dp));
    // In the order of packing: microbatch, then replica.
    std::vector<SampleId> order;
    size_t longest = 0;
    for (const auto& replica : step.packed) {
      ASSERT_FALSE(replica.empty()) << seed;
      longest = std::max(longest, replica.size());
    }
    for (size_t m = 0; m < longest; ++m) {
      for (const auto& replica : step.packed) {
        if (m >= replica.size()) continue;
        ASSERT_FALSE(replica[m].empty());
        const Load load = LoadOf(job, step, replica[m]);
        const TrainingSpec& t = job.training;
        ASSERT_TRUE(t.microbatch_samples == 0 ||
                    static_cast<int64_t>(replica[m].size()) <=
                        t.microbatch_samples)
            << seed;
        const bool fits =
            load.tokens <= t.microbatch_tokens &&
            (t.microbatch_images == 0 || load.images <= t.microbatch_images) &&
            (t.microbatch_seconds == 0 ||
             load.seconds <= t.microbatch_seconds + 1e-3);
        ASSERT_TRUE(fits || (replica[m].size() == 1 && load.items == 1))
            << seed;
        order.insert(order.end(), replica[m].begin(), replica[m].end());
      }
    }
    WorkShape in;
    WorkShape out;
    SampleId last(0);
    std::map<int32_t, WorkShape> media;  // Work of modules before the backbone.
    for (const SampleId id : order) {
      ASSERT_GE(step.piece_of[id], last) << seed;
      last = step.piece_of[id];
      out += TotalWork(job, step.samples.samples[id]);
    }
    for (int32_t i = 0; i < static_cast<int32_t>(step.num_samples); ++i) {
      in += TotalWork(job, batch.samples[SampleId(i)]);
    }
    EXPECT_EQ(out.tokens, in.tokens) << seed;
    EXPECT_EQ(out.output_tokens, in.output_tokens) << seed;
  }
}

TEST(SplitMicrobatchesTest, CutsInstancesIntoEvenSlices) {
  const JobSpec job = SmallVlmJob();
  BatchMetadata batch;
  batch.samples.push_back(
      {.text_tokens = 10, .images = std::vector<ImageSize>(7, {224, 224})});
  batch.samples.push_back({.text_tokens = 20, .images = {{224, 224}}});
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
  Partition partition = Whole(job);
  partition.sub_microbatch_instances[ModuleId(0)] = 3;
  ASSERT_OK_AND_ASSIGN(const Microbatches m,
                       SplitMicrobatches(job, step, 0, partition));
  ASSERT_EQ(m.sub_microbatches.size(), 4);
  std::vector<int64_t> images;
  for (int32_t i = 0; i < 3; ++i) {
    images.push_back(m.sub_microbatches[SubMicrobatchId(i)].shape.instances);
  }
  EXPECT_THAT(images, ElementsAre(2, 3, 3)) << "8 images in ceil(8 / 3) slices";
  const WorkShape& text = m.sub_microbatches[SubMicrobatchId(3)].shape;
  EXPECT_EQ(text.tokens, 30 + 8 * 16);
  EXPECT_EQ(text.squared_tokens, (10.0 + 112) * (10 + 112) + 36.0 * 36.0);
}

TEST(SplitMicrobatchesTest, CoversEveryInstanceOnce) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const JobSpec job = RandomJob(seed);
    const BatchMetadata batch = RandomMixedBatch(seed + 1000, 40);
    ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, batch, 0));
    const Partition partition =
        Whole(job, static_cast<int64_t>(seed % 6));  // 0: whole.
    int64_t tokens = 0;
    for (int32_t replica = 0; replica < job.parallel.dp; ++replica) {
      ASSERT_OK_AND_ASSIGN(const Microbatches m,
                           SplitMicrobatches(job, step, replica, partition));
      ASSERT_THAT(ValidateMicrobatches(m, job.model), IsOk());
      EXPECT_EQ(m.samples.items(), step.packed[static_cast<size_t>(replica)]);
      for (const MicrobatchId mb : m.samples.ids()) {
        IdVector<ModuleId, WorkShape> expected(job.model.modules.size());
        for (const SampleId id : m.samples[mb]) {
          const auto work = SampleWork(job.model, step.samples.samples[id]);
          for (const ModuleId module : expected.ids()) {
            expected[module] += work[module];
          }
        }
        for (const ModuleId module : expected.ids()) {
          const std::vector<SubMicrobatchId> subs = m.Of(mb, module);
          const int64_t size = partition.sub_microbatch_instances[module];
          const int64_t n = expected[module].instances;
          const int64_t slices = n == 0      ? 0
                                 : size == 0 ? 1
                                             : (n + size - 1) / size;
          ASSERT_EQ(static_cast<int64_t>(subs.size()), slices);
          WorkShape sum;
          for (const SubMicrobatchId sub : subs) {
            const WorkShape& shape = m.sub_microbatches[sub].shape;
            EXPECT_GE(shape.instances, n / slices);
            EXPECT_LE(shape.instances, (n + slices - 1) / slices);
            sum += shape;
          }
          EXPECT_EQ(sum, expected[module]) << seed;
          tokens += sum.tokens;
        }
      }
    }
    EXPECT_GT(tokens, 0);
  }
}

// Microbatches of 3 and 7, then of 4 and 5 samples; slices of 2.
TEST(SplitMicrobatchesTest, ReplicasThatMeetHaveAsManySlicesEach) {
  JobSpec job = SmallExpertJob();
  PackedStep step;
  step.samples = RandomBatch(1, 19, 1);
  int32_t next = 0;
  const auto ids = [&next](int count) {
    std::vector<SampleId> samples;
    while (count-- > 0) samples.emplace_back(next++);
    return samples;
  };
  step.packed = {{ids(3), ids(4)}, {ids(7), ids(5)}};
  step.num_samples = 19;
  Partition partition;
  partition.sub_microbatch_instances = {1, 2};
  const auto slices = [&](int32_t replica, ModuleId module) {
    const auto microbatches = SplitMicrobatches(job, step, replica, partition);
    EXPECT_THAT(microbatches, IsOk());
    std::vector<size_t> counts;
    for (const int32_t m : {0, 1}) {
      counts.push_back(microbatches->Of(MicrobatchId(m), module).size());
    }
    return counts;
  };
  const ModuleId encoder(0);
  const ModuleId backbone(1);
  for (const int32_t r : {0, 1}) {
    EXPECT_THAT(slices(r, backbone), ElementsAre(2, 2)) << r;
  }
  // The encoder has no experts.
  EXPECT_NE(slices(0, encoder), slices(1, encoder));
  // Experts on one replica each.
  job.parallel.ep = 1;
  EXPECT_THAT(slices(0, backbone), ElementsAre(2, 2));
  EXPECT_THAT(slices(1, backbone), ElementsAre(4, 3));
  // One replica alone does not know the others.
  job.parallel.ep = 2;
  step.packed[0].clear();
  EXPECT_THAT(slices(1, backbone), ElementsAre(4, 3));
}

TEST(SplitMicrobatchesTest, RefusesAReplicaOrPartitionThatDoesNotFit) {
  const JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const PackedStep step, PackStep(job, TextBatch({1}), 0));
  EXPECT_THAT(SplitMicrobatches(job, step, 1, Whole(job)),
              FailsWith(kInvalid, HasSubstr("replica 1")));
  EXPECT_THAT(SplitMicrobatches(job, step, 0, Partition{}),
              FailsWith(kInvalid, HasSubstr("sub_microbatch_instances")));
}

}  // namespace
}  // namespace pipeloom::partition
