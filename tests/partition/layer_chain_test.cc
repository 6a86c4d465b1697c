#include "partition/placement/layer_chain.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom::partition {
namespace {

using ::testing::ElementsAre;

ModuleSpec Module(std::vector<LayerKind> kinds) {
  ModuleSpec module;
  for (const LayerKind kind : kinds) {
    LayerSpec layer;
    layer.kind = kind;
    module.layers.push_back(layer);
  }
  return module;
}

std::vector<LayerUnit> Units(const ModuleSpec& module,
                             const IdVector<LayerId, int64_t>& weights,
                             bool glue_loss_head = false) {
  std::vector<LayerUnit> units;
  AppendUnits(ModuleId(0), module, weights, glue_loss_head, &units);
  return units;
}

LayerUnit Unit(int32_t first, int32_t count, int64_t weight) {
  return {.module = ModuleId(0),
          .first_layer = LayerId(first),
          .num_layers = count,
          .weight = weight};
}

constexpr LayerKind kBlock = LayerKind::kTransformer;
constexpr LayerKind kLinears = LayerKind::kLinears;
constexpr LayerKind kEmbedding = LayerKind::kEmbedding;
constexpr LayerKind kHead = LayerKind::kLossHead;

TEST(AppendUnitsTest, LittleLayersGoWithTheNextBlock) {
  EXPECT_THAT(
      Units(Module({kLinears, kBlock, kBlock, kLinears}), {1, 100, 100, 12}),
      ElementsAre(Unit(0, 2, 101), Unit(2, 2, 112)));
  // 13 of 100 is over an eighth.
  EXPECT_THAT(Units(Module({kBlock, kLinears}), {100, 13}),
              ElementsAre(Unit(0, 1, 100), Unit(1, 1, 13)));
}

TEST(AppendUnitsTest, AnEmbeddingNeverStandsAloneAndALossHeadMay) {
  const ModuleSpec module = Module({kEmbedding, kBlock, kBlock, kHead});
  EXPECT_THAT(Units(module, {90, 100, 100, 250}),
              ElementsAre(Unit(0, 2, 190), Unit(2, 1, 100), Unit(3, 1, 250)));
  EXPECT_THAT(Units(module, {0, 100, 100, 250}, /*glue_loss_head=*/true),
              ElementsAre(Unit(0, 2, 100), Unit(2, 2, 350)));
  EXPECT_THAT(Units(module, {0, 1, 1, 0}),
              ElementsAre(Unit(0, 2, 1), Unit(2, 2, 1)));
}

TEST(AppendUnitsTest, AModuleOfLittleLayersIsOneUnit) {
  EXPECT_THAT(Units(Module({kEmbedding}), {0}), ElementsAre(Unit(0, 1, 0)));
  EXPECT_THAT(Units(Module({kEmbedding, kHead}), {0, 0}, true),
              ElementsAre(Unit(0, 2, 0)));
  EXPECT_THAT(Units(Module({kLinears, kLinears}), {5, 5}),
              ElementsAre(Unit(0, 1, 5), Unit(1, 1, 5)));
}

TEST(AppendStagesTest, ARunOverAModuleBoundaryIsTwoStagesOnOneRank) {
  std::vector<LayerUnit> units;
  AppendUnits(ModuleId(0), Module({kBlock, kBlock, kBlock}), {1, 1, 1}, false,
              &units);
  AppendUnits(ModuleId(1), Module({kBlock, kBlock, kBlock}), {1, 1, 1}, false,
              &units);
  Partition partition;
  partition.num_ranks = 2;
  partition.num_segments = 3;  // Segments of the modules before.
  AppendStages(units, 4, &partition);
  const auto stage = [](int32_t module, int32_t first, int32_t count,
                        int32_t rank, int32_t segment) {
    return Stage{.module = ModuleId(module),
                 .first_layer = LayerId(first),
                 .num_layers = count,
                 .rank = RankId(rank),
                 .segment = SegmentId(segment)};
  };
  EXPECT_THAT(partition.stages.items(),
              ElementsAre(stage(0, 0, 1, 0, 3), stage(0, 1, 1, 1, 3),
                          stage(0, 2, 1, 0, 4), stage(1, 0, 1, 0, 4),
                          stage(1, 1, 2, 1, 4)));
  EXPECT_EQ(partition.num_segments, 5);
}

TEST(AppendStagesTest, MakesNoMoreStagesThanThereAreUnitsWithAWeight) {
  Partition partition;
  partition.num_ranks = 4;
  AppendStages({Unit(0, 1, 0), Unit(1, 1, 5), Unit(2, 1, 5)}, 8, &partition);
  ASSERT_EQ(partition.stages.size(), 2);
  EXPECT_EQ(partition.stages[StageId(0)].num_layers, 2);
  EXPECT_EQ(partition.num_segments, 1);
}

}  // namespace
}  // namespace pipeloom::partition
