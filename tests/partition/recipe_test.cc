#include "partition/placement/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"
#include "partition/placement/layer_partition.h"
#include "partition/placement/placement.h"
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
using ::pipeloom::testing::SmallVlmJob;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ModuleId kEncoder(0);
constexpr ModuleId kBackbone(1);

absl::StatusOr<Partition> Build(const JobSpec& job,
                                const PartitionRecipe& recipe) {
  const emulator::StageCostModel costs(job);
  auto builder = PartitionBuilder::Create(job, costs, RandomBatch(1, 200, 4));
  if (!builder.ok()) return builder.status();
  return builder->Build(recipe);
}

PartitionRecipe Recipe(int32_t encoder_segments, int32_t backbone_segments) {
  PartitionRecipe recipe;
  recipe.modules.resize(2);
  recipe.modules[kEncoder].segments = encoder_segments;
  recipe.modules[kBackbone].segments = backbone_segments;
  return recipe;
}

std::vector<int32_t> RanksOf(const Partition& partition, ModuleId m) {
  std::vector<int32_t> ranks;
  for (const StageId s : partition.StagesOf(m)) {
    ranks.push_back(partition.stages[s].rank.value());
  }
  return ranks;
}

// Over all cuts with the same restriction, on ranks of up to four speeds.
TEST(SplitLayersAllowedTest, EqualsBruteForceOnSmallChains) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const auto n = static_cast<int32_t>(random.Between(1, 8));
    const auto runs = static_cast<int32_t>(random.Between(1, n));
    std::vector<int64_t> weights;
    std::vector<std::vector<bool>> allowed;
    for (int32_t i = 0; i < n; ++i) {
      weights.push_back(random.Between(0, 9));
      allowed.emplace_back();
      if (random.Below(3) > 0) continue;
      for (int32_t r = 0; r < runs; ++r) {
        allowed.back().push_back(random.Below(2) == 0);
      }
    }
    std::vector<double> slow;
    for (int32_t r = 0; r < runs && seed % 2 == 1; ++r) {
      slow.push_back(static_cast<double>(random.Between(4, 8)) / 4);
    }
    const auto load = [&](int64_t sum, int32_t run) {
      return slow.empty() ? sum
                          : std::llround(static_cast<double>(sum) *
                                         slow[static_cast<size_t>(run)]);
    };
    int64_t best = std::numeric_limits<int64_t>::max();
    for (uint32_t cuts = 0; cuts < (1u << (n - 1)); ++cuts) {
      if (std::popcount(cuts) != runs - 1) continue;
      int32_t run = 0;
      int64_t sum = 0;
      int64_t most = 0;
      bool ok = true;
      for (int32_t i = 0; i < n; ++i) {
        if (i > 0 && (cuts >> (i - 1) & 1) != 0) {
          ++run;
          sum = 0;
        }
        const auto& may = allowed[static_cast<size_t>(i)];
        ok = ok && (may.empty() || may[static_cast<size_t>(run)]);
        sum += weights[static_cast<size_t>(i)];
        most = std::max<int64_t>(most, load(sum, run));
      }
      if (ok) best = std::min(best, most);
    }
    const std::vector<int32_t> begins =
        SplitLayers(weights, runs, allowed, slow);
    if (best == std::numeric_limits<int64_t>::max()) {
      EXPECT_TRUE(begins.empty()) << seed;
      continue;
    }
    ASSERT_EQ(static_cast<int32_t>(begins.size()), runs) << seed;
    int64_t most = 0;
    for (int32_t r = 0; r < runs; ++r) {
      const int32_t end = r + 1 < runs ? begins[static_cast<size_t>(r) + 1] : n;
      int64_t sum = 0;
      for (int32_t i = begins[static_cast<size_t>(r)]; i < end; ++i) {
        const auto& may = allowed[static_cast<size_t>(i)];
        EXPECT_TRUE(may.empty() || may[static_cast<size_t>(r)]) << seed;
        sum += weights[static_cast<size_t>(i)];
      }
      most = std::max<int64_t>(most, load(sum, r));
    }
    EXPECT_EQ(most, best) << seed;
  }
}

TEST(PartitionBuilderTest, DipsRuleIsTheSeparatedPartition) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const JobSpec job = RandomJob(seed);
    const BatchMetadata sample = RandomMixedBatch(seed, 60);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const PartitionBuilder builder,
                         PartitionBuilder::Create(job, costs, sample));
    ASSERT_OK_AND_ASSIGN(const Partition by_rule,
                         builder.Build(builder.DipRule()));
    ASSERT_OK_AND_ASSIGN(const Partition separated,
                         SeparatedPartition(job, costs, sample));
    EXPECT_EQ(by_rule, separated) << seed;
  }
}

TEST(PartitionBuilderTest, AVeeComesBackToTheFirstRank) {
  PartitionRecipe recipe = Recipe(1, 2);
  recipe.modules[kBackbone].map = RankMap::kVee;
  ASSERT_OK_AND_ASSIGN(const Partition partition, Build(SmallVlmJob(), recipe));
  EXPECT_THAT(RanksOf(partition, kEncoder), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(RanksOf(partition, kBackbone),
              ElementsAre(0, 1, 2, 3, 3, 2, 1, 0));
}

TEST(PartitionBuilderTest, AReversedModuleBeginsAtTheLastRank) {
  PartitionRecipe recipe = Recipe(1, 2);
  recipe.modules[kEncoder].reversed = true;
  recipe.modules[kBackbone].reversed = true;
  recipe.modules[kBackbone].map = RankMap::kVee;
  ASSERT_OK_AND_ASSIGN(const Partition partition, Build(SmallVlmJob(), recipe));
  EXPECT_THAT(RanksOf(partition, kEncoder), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(RanksOf(partition, kBackbone),
              ElementsAre(3, 2, 1, 0, 0, 1, 2, 3));
}

TEST(PartitionBuilderTest, ModulesMayHaveRanksOfTheirOwn) {
  PartitionRecipe recipe = Recipe(1, 1);
  recipe.modules[kEncoder].num_ranks = 1;
  recipe.modules[kBackbone].first_rank = 1;
  recipe.modules[kBackbone].num_ranks = 3;
  ASSERT_OK_AND_ASSIGN(const Partition partition, Build(SmallVlmJob(), recipe));
  EXPECT_THAT(RanksOf(partition, kEncoder), ElementsAre(0));
  EXPECT_THAT(RanksOf(partition, kBackbone), ElementsAre(1, 2, 3));
}

// DeepStack: the first layers of the backbone are with the encoder's last.
TEST(PartitionRulesTest, LayersStayTogetherAcrossModules) {
  JobSpec job = SmallVlmJob();
  job.partition.together = {
      {.layers = {{.module = "encoder", .first = -2, .count = 2},
                  {.module = "backbone", .first = 0, .count = 4}}}};
  ASSERT_THAT(ValidateJobSpec(job), IsOk());
  // One looped pass ends where the next does not begin; a vee comes back.
  EXPECT_THAT(
      Build(job, Recipe(1, 1)),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("no cut of")));
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition partition,
                       SeparatedPartition(job, costs, RandomBatch(1, 200, 4)));
  EXPECT_THAT(CheckPartitionRules(job, partition), IsOk());
  const Stage& last = partition.stages[partition.StagesOf(kEncoder).back()];
  const Stage& first = partition.stages[partition.StagesOf(kBackbone).front()];
  EXPECT_EQ(last.rank, first.rank);
  EXPECT_GE(first.num_layers, 4);
}

TEST(PartitionRulesTest, TiedEmbeddingsMeetOnOneRank) {
  JobSpec job = SmallVlmJob();
  job.partition.together = {{.layers = {{.module = "backbone", .first = 0},
                                        {.module = "backbone", .first = -1}},
                             .rank = 0}};
  PartitionRecipe vee = Recipe(1, 2);
  vee.modules[kBackbone].map = RankMap::kVee;
  ASSERT_OK_AND_ASSIGN(const Partition partition, Build(job, vee));
  EXPECT_THAT(CheckPartitionRules(job, partition), IsOk());
  // One pass over four ranks cannot begin and end on one of them.
  EXPECT_THAT(
      Build(job, Recipe(1, 1)),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("no cut of")));
}

TEST(PartitionRulesTest, TheLossHeadGoesToTheRankThatIsNamed) {
  for (const int32_t rank : {-1, 3}) {
    JobSpec job = SmallVlmJob();
    job.partition.together = {
        {.layers = {{.module = "backbone", .first = -1}}, .rank = rank}};
    ASSERT_OK_AND_ASSIGN(const Partition partition, Build(job, Recipe(1, 2)));
    const Stage& last = partition.stages[partition.StagesOf(kBackbone).back()];
    EXPECT_EQ(last.rank, RankId(3));
  }
}

TEST(PartitionRulesTest, OwnRanksGoBeforeTheRecipe) {
  JobSpec job = SmallVlmJob();
  job.partition.own_ranks = {
      {.module = "encoder", .first_rank = 2, .num_ranks = 2}};
  ASSERT_OK_AND_ASSIGN(const Partition partition, Build(job, Recipe(1, 1)));
  EXPECT_THAT(RanksOf(partition, kEncoder), ElementsAre(2, 3));
  EXPECT_THAT(CheckPartitionRules(job, partition), IsOk());
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const Partition concatenated,
                       ConcatenatedPartition(job, 1, LayerWeight::kParameters));
  EXPECT_THAT(CheckPartitionRules(job, concatenated),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("own_ranks[0]: a stage of \"encoder\"")));
}

TEST(PartitionRulesTest, ValidationNamesTheRuleAndWhatWouldBeRight) {
  const auto refuses = [](PartitionRules rules, const char* message) {
    JobSpec job = SmallVlmJob();
    job.partition = std::move(rules);
    EXPECT_THAT(
        ValidateJobSpec(job),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refuses({.together = {{.layers = {{.module = "decoder"}}}}},
          "partition.together[0] names module \"decoder\"; the model has "
          "encoder, backbone");
  refuses({.together =
               {{.layers = {{.module = "encoder", .first = 8, .count = 5}}}}},
          "has 5 layers of \"encoder\" from layer 8; that module has 10");
  refuses({.together = {{}}}, "has no layers");
  refuses({.together = {{.layers = {{.module = "encoder"}}, .rank = 4}}},
          "has rank 4; it must be in [-4, 3]");
  refuses(
      {.own_ranks = {{.module = "encoder", .first_rank = 3, .num_ranks = 2}}},
      "has 2 ranks from rank 3; the job has 4");
}

// Leveling never makes the busiest rank busier, and any recipe of any job is a
// valid partition or says what is wrong.
TEST(PartitionBuilderTest, EveryRecipeOfEveryJobIsValid) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    Random random(seed);
    const JobSpec job = RandomJob(seed);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(
        const PartitionBuilder builder,
        PartitionBuilder::Create(job, costs, RandomMixedBatch(seed, 60)));
    PartitionRecipe recipe = builder.DipRule();
    for (ModuleRecipe& m : recipe.modules) {
      m.segments = static_cast<int32_t>(random.Between(1, 5));
      m.map = random.Below(2) == 0 ? RankMap::kLooped : RankMap::kVee;
      m.reversed = random.Below(2) == 0;
      if (random.Below(3) == 0) {
        m.first_rank = static_cast<int32_t>(random.Below(job.parallel.pp));
        m.num_ranks = static_cast<int32_t>(
            random.Between(1, job.parallel.pp - m.first_rank));
      }
    }
    recipe.one_chain = random.Below(4) == 0;
    for (const bool level : {false, true}) {
      recipe.level_ranks = level;
      ASSERT_OK_AND_ASSIGN(const Partition partition, builder.Build(recipe));
      ASSERT_THAT(ValidatePartition(partition, job.model), IsOk()) << seed;
      for (const StageId s : partition.stages.ids()) {
        for (const bool back : {false, true}) {
          const auto moved = builder.MoveUnit(partition, s, back);
          if (!moved.has_value()) continue;
          EXPECT_THAT(ValidatePartition(*moved, job.model), IsOk()) << seed;
          EXPECT_NE(*moved, partition);
          EXPECT_EQ(builder.MoveUnit(*moved, s, !back), partition) << seed;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipeloom::partition
