#include "partition/placement/placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/partition/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomMixedBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
const ModuleId kEncoder(0);
const ModuleId kBackbone(1);

// 8 images and some text in each of four samples.
BatchMetadata Sample() {
  BatchMetadata batch;
  for (int i = 0; i < 4; ++i) {
    batch.samples.push_back(
        {.text_tokens = 500, .images = std::vector<ImageSize>(8, {224, 224})});
  }
  return batch;
}

std::vector<int32_t> LayerCounts(const Partition& partition) {
  std::vector<int32_t> counts;
  for (const Stage& stage : partition.stages) {
    counts.push_back(stage.num_layers);
  }
  return counts;
}

int32_t SegmentsOf(const Partition& partition, ModuleId module) {
  std::set<int32_t> segments;
  for (const StageId s : partition.StagesOf(module)) {
    segments.insert(partition.stages[s].segment.value());
  }
  return static_cast<int32_t>(segments.size());
}

// SmallVlmJob with `blocks` times as many blocks in the backbone.
JobSpec WithBackboneBlocks(int32_t blocks) {
  JobSpec job = SmallVlmJob();
  ModuleSpec& backbone = job.model.modules[kBackbone];
  const auto old = backbone.layers;
  backbone.layers.clear();
  backbone.layers.push_back(old[LayerId(0)]);
  for (int32_t i = 0; i < blocks; ++i) {
    backbone.layers.push_back(old[LayerId(1)]);
  }
  backbone.layers.push_back(old[LayerId(old.size() - 1)]);
  return job;
}

TEST(ConcatenatedPartitionTest, GivesEachRunTheSameNumberOfBlocks) {
  ASSERT_OK_AND_ASSIGN(
      const Partition partition,
      ConcatenatedPartition(SmallVlmJob(), 1, LayerWeight::kCount));
  // Patch embedding + 4, 4 + projector; embedding + 4, 4 + loss head.
  EXPECT_THAT(LayerCounts(partition), ElementsAre(5, 5, 5, 5));
  EXPECT_EQ(partition.num_segments, 1);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(partition.stages[StageId(i)].rank, RankId(i));
  }
  EXPECT_THAT(partition.sub_microbatch_instances.items(), ElementsAre(0, 0));
}

TEST(ConcatenatedPartitionTest, LoopsChunksOverTheRanks) {
  ASSERT_OK_AND_ASSIGN(
      const Partition partition,
      ConcatenatedPartition(SmallVlmJob(), 2, LayerWeight::kCount));
  ASSERT_EQ(partition.stages.size(), 8);
  EXPECT_EQ(partition.num_segments, 2);
  EXPECT_EQ(partition.stages[StageId(5)].rank, RankId(1));
  EXPECT_EQ(partition.stages[StageId(5)].segment, SegmentId(1));
}

TEST(ConcatenatedPartitionTest, WeighsTheLossHeadByItsParameters) {
  // 32,000 x 512 parameters are nearly four blocks of 4.2 million; an encoder
  // block is a sixth of one.
  ASSERT_OK_AND_ASSIGN(
      const Partition partition,
      ConcatenatedPartition(SmallVlmJob(), 1, LayerWeight::kParameters));
  const Stage& last = partition.stages[StageId(partition.stages.size() - 1)];
  EXPECT_EQ(last.rank, RankId(3));
  EXPECT_EQ(last.num_layers, 1) << "the loss head alone";
  EXPECT_EQ(partition.StagesOf(kEncoder).size(), 1u);
}

TEST(ConcatenatedPartitionTest, FewerLayersThanRunsLeavesRanksEmpty) {
  JobSpec job = WithBackboneBlocks(2);
  job.model.modules = {job.model.modules[kBackbone]};
  job.model.edges.clear();
  for (const LayerWeight weight :
       {LayerWeight::kCount, LayerWeight::kParameters}) {
    ASSERT_OK_AND_ASSIGN(const Partition partition,
                         ConcatenatedPartition(job, 2, weight));
    EXPECT_THAT(ValidatePartition(partition, job.model), IsOk());
    EXPECT_THAT(LayerCounts(partition), ElementsAre(2, 2))
        << "the embedding and the loss head stay with a block";
    EXPECT_EQ(partition.num_ranks, 4);
  }
}

TEST(ConcatenatedPartitionTest, RefusesLessThanOneChunk) {
  EXPECT_THAT(ConcatenatedPartition(SmallVlmJob(), 0, LayerWeight::kCount),
              FailsWith(kInvalid, HasSubstr("chunks is 0")));
}

// No stage of a module that has blocks consists of `idle` kinds only.
void ExpectNoStageOf(const std::set<LayerKind>& idle, const JobSpec& job,
                     const Partition& partition) {
  for (const Stage& stage : partition.stages) {
    const auto& layers = job.model.modules[stage.module].layers;
    const auto is_idle = [&](const LayerSpec& layer) {
      return idle.count(layer.kind) > 0;
    };
    if (std::all_of(layers.begin(), layers.end(), is_idle)) continue;
    bool works = false;
    for (int32_t i = 0; i < stage.num_layers; ++i) {
      works |= !is_idle(layers[LayerId(stage.first_layer.value() + i)]);
    }
    EXPECT_TRUE(works) << job.model.modules[stage.module].name;
  }
}

TEST(ConcatenatedPartitionTest, IsValidAndLeastForAnyModel) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const JobSpec job = RandomJob(seed);
    for (const int32_t chunks : {1, 2, 3, 20}) {
      for (const LayerWeight weight :
           {LayerWeight::kCount, LayerWeight::kParameters}) {
        ASSERT_OK_AND_ASSIGN(const Partition partition,
                             ConcatenatedPartition(job, chunks, weight));
        ASSERT_THAT(ValidatePartition(partition, job.model), IsOk()) << seed;
        ExpectNoStageOf({LayerKind::kEmbedding, LayerKind::kLinears}, job,
                        partition);
        if (weight != LayerWeight::kCount) continue;
        // Equal weights: the fullest run has ceil(blocks / runs).
        std::map<std::pair<int32_t, int32_t>, int32_t> blocks;
        int32_t total = 0;
        for (const Stage& stage : partition.stages) {
          for (int32_t i = 0; i < stage.num_layers; ++i) {
            const LayerSpec& layer =
                job.model.modules[stage.module]
                    .layers[LayerId(stage.first_layer.value() + i)];
            if (layer.kind != LayerKind::kTransformer) continue;
            ++total;
            ++blocks[{stage.segment.value(), stage.rank.value()}];
          }
        }
        const int32_t runs = std::min(total, job.parallel.pp * chunks);
        for (const auto& [place, count] : blocks) {
          EXPECT_LE(count, (total + runs - 1) / runs) << seed;
        }
        EXPECT_EQ(static_cast<int32_t>(blocks.size()), runs) << seed;
      }
    }
  }
}

TEST(SeparatedPartitionTest, EachModuleHasItsOwnSegmentsOverAllRanks) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  ASSERT_THAT(ValidatePartition(partition, job.model), IsOk());
  for (const ModuleId m : job.model.modules.ids()) {
    std::vector<int32_t> ranks;
    for (const StageId s : partition.StagesOf(m)) {
      ranks.push_back(partition.stages[s].rank.value());
    }
    ASSERT_EQ(ranks.size() % 4, 0u);
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_EQ(ranks[i], static_cast<int32_t>(i % 4));
    }
  }
  EXPECT_EQ(SegmentsOf(partition, kEncoder) + SegmentsOf(partition, kBackbone),
            partition.num_segments)
      << "no segment is shared";
  EXPECT_EQ(partition.sub_microbatch_instances[kBackbone], 0);
}

// The paper's rule, applied here to sizes of equal images.
TEST(SeparatedPartitionTest, TakesTheSmallestSizeOf95PercentEfficiency) {
  JobSpec job = SmallVlmJob();
  job.training.microbatch_tokens = 4096;
  const emulator::StageCostModel costs(job);
  BatchMetadata sample;
  sample.samples.push_back({.images = std::vector<ImageSize>(64, {224, 224})});
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, sample));
  const Stage whole{.module = kEncoder,
                    .first_layer = LayerId(0),
                    .num_layers = job.model.modules[kEncoder].layers.size(),
                    .rank = RankId(0),
                    .segment = SegmentId(0)};
  const auto rate = [&](int64_t images) {
    const auto n = static_cast<double>(images);
    const WorkShape shape{.instances = images,
                          .tokens = 256 * images,
                          .output_tokens = 16 * images,
                          .squared_tokens = 256.0 * 256.0 * n};
    return n / ToSeconds(costs.Cost(whole, shape, true).forward);
  };
  const std::vector<int64_t> sizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  double best = 0;
  for (const int64_t size : sizes) best = std::max(best, rate(size));
  const auto expected =
      std::find_if(sizes.begin(), sizes.end(),
                   [&](int64_t size) { return rate(size) >= 0.95 * best; });
  EXPECT_EQ(partition.sub_microbatch_instances[kEncoder], *expected);
}

TEST(SeparatedPartitionTest, SizesOfTheJobGoFirst) {
  JobSpec job = SmallVlmJob();
  job.training.sub_microbatch_sizes = {{"encoder", 5}, {"backbone", 2}};
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  EXPECT_THAT(partition.sub_microbatch_instances.items(), ElementsAre(5, 2));
}

TEST(SeparatedPartitionTest, SlowerModulesHaveMoreSegments) {
  for (const int32_t blocks : {8, 16, 32, 64, 96}) {
    JobSpec job = WithBackboneBlocks(blocks);
    job.training.sub_microbatch_sizes = {{"encoder", 8}};
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const Partition partition,
                         SeparatedPartition(job, costs, Sample()));
    // Each sample of 628 tokens: three in a microbatch of 2048, then one; on
    // average 2 a microbatch.
    const auto time = [&](ModuleId m, const WorkShape& shape) {
      return costs
          .Cost({.module = m,
                 .first_layer = LayerId(0),
                 .num_layers = job.model.modules[m].layers.size(),
                 .rank = RankId(0),
                 .segment = SegmentId(0)},
                shape, true)
          .forward;
    };
    const Duration encoder =
        time(kEncoder, {.instances = 8,
                        .tokens = 8 * 256,
                        .output_tokens = 8 * 16,
                        .squared_tokens = 8 * 256.0 * 256.0});
    const Duration backbone =
        time(kBackbone, {.instances = 2,
                         .tokens = 2 * 628,
                         .output_tokens = 2 * 628,
                         .squared_tokens = 2 * 628.0 * 628.0});
    const Duration least = std::min(encoder, backbone);
    const auto expected = [&](Duration t) {
      return static_cast<int32_t>(std::min<int64_t>(4, t / least));
    };
    EXPECT_EQ(SegmentsOf(partition, kBackbone),
              std::min(expected(backbone), blocks / 4))
        << blocks;
    EXPECT_EQ(SegmentsOf(partition, kEncoder),
              std::min(expected(encoder), 2 /* 8 blocks on 4 ranks */));
  }
}

// A module of one small linear layer between encoder and backbone.
JobSpec WithProjectorModule() {
  JobSpec job = SmallVlmJob();
  ModuleSpec projector;
  projector.name = "projector";
  projector.role = ModuleRole::kEncoder;
  LayerSpec linear;
  linear.kind = LayerKind::kLinears;
  linear.hidden = 512;
  linear.linears = {{.in = 512, .out = 512}};
  projector.layers.push_back(linear);
  job.model.modules = {job.model.modules[kEncoder], projector,
                       job.model.modules[kBackbone]};
  job.model.edges = {{.from = ModuleId(0), .to = ModuleId(1)},
                     {.from = ModuleId(1), .to = ModuleId(2)}};
  return job;
}

TEST(SeparatedPartitionTest, ATinyModuleJoinsItsConsumersFirstStage) {
  const JobSpec job = WithProjectorModule();
  ASSERT_THAT(ValidateJobSpec(job), IsOk());
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  ASSERT_THAT(ValidatePartition(partition, job.model), IsOk());
  const std::vector<StageId> projector = partition.StagesOf(ModuleId(1));
  const std::vector<StageId> backbone = partition.StagesOf(ModuleId(2));
  ASSERT_EQ(projector.size(), 1u);
  const Stage& first = partition.stages[backbone.front()];
  EXPECT_EQ(partition.stages[projector[0]].segment, first.segment);
  EXPECT_EQ(partition.stages[projector[0]].rank, first.rank);
}

TEST(SeparatedPartitionTest, ATinyModuleDoesNotMultiplyTheOthersSegments) {
  const JobSpec with = WithProjectorModule();
  const emulator::StageCostModel with_costs(with);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(with, with_costs, Sample()));
  const JobSpec without = SmallVlmJob();
  const emulator::StageCostModel without_costs(without);
  ASSERT_OK_AND_ASSIGN(const Partition plain,
                       SeparatedPartition(without, without_costs, Sample()));
  EXPECT_EQ(partition.num_segments, plain.num_segments);
}

TEST(SeparatedPartitionTest, ASmallGeneratorJoinsItsProducersLastSegment) {
  JobSpec job = SmallVlmJob();
  ModuleSpec generator;
  generator.name = "generator";
  generator.role = ModuleRole::kGenerator;
  generator.token_rules = job.model.modules[kEncoder].token_rules;
  const LayerSpec block = job.model.modules[kEncoder].layers[LayerId(1)];
  for (int i = 0; i < 3; ++i) generator.layers.push_back(block);
  const ModuleId id = job.model.modules.push_back(generator);
  job.model.edges.push_back({.from = kBackbone, .to = id, .as_context = true});
  ASSERT_THAT(ValidateJobSpec(job), IsOk());
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  ASSERT_THAT(ValidatePartition(partition, job.model), IsOk());
  const StageId last_backbone = partition.StagesOf(kBackbone).back();
  for (const StageId s : partition.StagesOf(id)) {
    EXPECT_GT(s, last_backbone);
    EXPECT_EQ(partition.stages[s].segment.value(), partition.num_segments - 1);
  }
  EXPECT_GE(partition.stages[last_backbone].segment.value(),
            partition.num_segments - 2);
}

TEST(SeparatedPartitionTest, AModelOfOneModuleHasOneSegment) {
  JobSpec job = SmallVlmJob();
  job.model.modules = {job.model.modules[kBackbone]};
  job.model.edges.clear();
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  ASSERT_THAT(ValidatePartition(partition, job.model), IsOk());
  EXPECT_EQ(partition.num_segments, 1);
  EXPECT_EQ(partition.stages.size(), 4);
}

TEST(SeparatedPartitionTest, ModulesOfFewLayersAllShareOneChain) {
  JobSpec job = WithBackboneBlocks(2);
  ModuleSpec& encoder = job.model.modules[kEncoder];
  encoder.layers = {encoder.layers[LayerId(0)], encoder.layers[LayerId(1)],
                    encoder.layers[LayerId(9)]};
  const emulator::StageCostModel costs(job);
  job.parallel.pp = 8;
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  ASSERT_THAT(ValidatePartition(partition, job.model), IsOk());
  EXPECT_EQ(partition.num_segments, 1);
  EXPECT_EQ(partition.num_ranks, 8);
}

TEST(SeparatedPartitionTest, AModuleTheSampleDoesNotUseHasOneSegment) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  BatchMetadata text;
  text.samples.push_back({.text_tokens = 100});
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, text));
  EXPECT_EQ(SegmentsOf(partition, kEncoder), 1);
  EXPECT_EQ(SegmentsOf(partition, kBackbone), 1);
  EXPECT_EQ(partition.StagesOf(kEncoder).size(), 4u);
}

TEST(SeparatedPartitionTest, OneRankHoldsEachModuleWhole) {
  JobSpec job = SmallVlmJob();
  job.parallel.pp = 1;
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, Sample()));
  EXPECT_THAT(LayerCounts(partition), ElementsAre(10, 10));
}

TEST(SeparatedPartitionTest, AnEmptySampleIsAnError) {
  const JobSpec job = SmallVlmJob();
  const emulator::StageCostModel costs(job);
  EXPECT_THAT(SeparatedPartition(job, costs, {}),
              FailsWith(kInvalid, HasSubstr("empty")));
}

TEST(SeparatedPartitionTest, IsValidForAnyModelAndSample) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const JobSpec job = RandomJob(seed);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(
        const Partition partition,
        SeparatedPartition(
            job, costs,
            RandomMixedBatch(seed, 1 + static_cast<int32_t>(seed % 30) + 5)));
    ASSERT_THAT(ValidatePartition(partition, job.model), IsOk()) << seed;
    // The random models are so small that a linear layer is real work.
    ExpectNoStageOf({LayerKind::kEmbedding}, job, partition);
    for (const ModuleId m : job.model.modules.ids()) {
      EXPECT_LE(SegmentsOf(partition, m), 5) << seed;
    }
  }
}

}  // namespace
}  // namespace pipeloom::partition
