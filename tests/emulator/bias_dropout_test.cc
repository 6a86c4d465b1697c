// Layers whose products have biases and whose blocks end in dropout.
#include <cstdint>
#include <variant>
#include <vector>

#include "emulator/ops/op_graph.h"
#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "ir/job/job_spec.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

constexpr int64_t kTokens = 4096;
constexpr double kPyTorchShare = 0.75;  // Relative to fused kernels.

// 1792 wide, 15360 plain, 16 heads of 112.
LayerSpec Block(bool biases, bool dropout) {
  LayerSpec layer = Vit5bBlock();
  layer.biases = biases;
  layer.dropout = dropout;
  return layer;
}

double MemoryBytes(const std::vector<OpStep>& steps) {
  double sum = 0;
  for (const OpStep& step : steps) {
    for (const Op& op : step.compute) {
      if (const auto* memory = std::get_if<MemoryOp>(&op)) sum += memory->bytes;
    }
  }
  return sum;
}

TEST(BiasDropout, ABiasCostsTheSumOfItsGradientOverTheRows) {
  for (const int32_t tp : {1, 2}) {
    const ParallelLayout parallel{.tp = tp};
    const WorkShape shape = Sequences(1, kTokens);
    const LayerOps with =
        BuildLayerOps(Block(true, false), shape, parallel, {});
    const LayerOps without =
        BuildLayerOps(Block(false, false), shape, parallel, {});
    // Queries, keys and values; attention's output; both feed-forward products.
    const double widths = 3 * 1792 + 1792 + 15360 + 1792;
    const double bytes = 2 * kTokens * widths / tp / kPyTorchShare;
    EXPECT_NEAR(MemoryBytes(with.backward) - MemoryBytes(without.backward),
                bytes, 1);
    EXPECT_NEAR(MemoryBytes(with.fused) - MemoryBytes(without.fused), bytes, 1);
    EXPECT_EQ(MemoryBytes(with.forward), MemoryBytes(without.forward));
    EXPECT_EQ(MemoryBytes(with.weight_grad), MemoryBytes(without.weight_grad));
  }
}

TEST(BiasDropout, AFrozenBiasCostsNothing) {
  const WorkShape shape = Sequences(1, kTokens);
  const GradientNeeds frozen{.weights = false, .input = true};
  EXPECT_EQ(
      MemoryBytes(
          BuildLayerOps(Block(true, false), shape, {}, frozen).backward),
      MemoryBytes(
          BuildLayerOps(Block(false, false), shape, {}, frozen).backward));
}

TEST(BiasDropout, DropoutWritesAMaskAndReadsItForTheGradient) {
  const WorkShape shape = Sequences(1, kTokens);
  const LayerOps with = BuildLayerOps(Block(false, true), shape, {}, {});
  const LayerOps without = BuildLayerOps(Block(false, false), shape, {}, {});
  const double elements = 2 * kTokens * 1792 / kPyTorchShare;  // Two blocks.
  EXPECT_NEAR(MemoryBytes(with.forward) - MemoryBytes(without.forward),
              elements, 1);
  EXPECT_NEAR(MemoryBytes(with.backward) - MemoryBytes(without.backward),
              5 * elements, 1);
}

StageCost CostOf(const LayerSpec& layer, const TrainingSetup& setup,
                 const ParallelLayout& parallel, Precision precision) {
  JobSpec job = JobOf({{layer, layer}}, parallel);
  job.model.modules[ModuleId(0)].precision = precision;
  job.setup = setup;
  return StageCostModel(job).Cost(StageOf(2), Sequences(1, kTokens), true);
}

TEST(BiasDropout, MasksAreKeptUntilTheInputGradientInAnyPrecision) {
  // Two layers of two blocks, a byte an element.
  const Bytes masks(int64_t{2} * 2 * kTokens * 1792);
  for (const Precision precision : {Precision::kBf16, Precision::kFp32}) {
    const StageCost with = CostOf(Block(false, true), {}, {}, precision);
    const StageCost without = CostOf(Block(false, false), {}, {}, precision);
    EXPECT_EQ(with.activations - without.activations, masks);
    EXPECT_EQ(with.freed_by_backward - without.freed_by_backward, masks);
  }
  // Without sequence parallelism every tensor-parallel GPU has all of them.
  TrainingSetup whole;
  whole.sequence_parallel = false;
  const ParallelLayout wide{.tp = 4};
  EXPECT_EQ(
      CostOf(Block(false, true), whole, wide, Precision::kBf16).activations -
          CostOf(Block(false, false), whole, wide, Precision::kBf16)
              .activations,
      masks);
}

TEST(BiasDropout, AnEmbeddingKeepsItsMask) {
  LayerSpec table = EmbeddingLayer();
  const StageCost without = CostOf(table, {}, {}, Precision::kBf16);
  table.dropout = true;
  const StageCost with = CostOf(table, {}, {}, Precision::kBf16);
  EXPECT_EQ(with.activations - without.activations,
            Bytes(2 * kTokens * table.hidden));
  EXPECT_GT(with.forward, without.forward);
  EXPECT_GT(with.fused, without.fused);
}

// TransformerEngine adds the bias of queries, keys and values in the product.
TEST(BiasDropout, WithoutFusedAttentionTheFirstBiasIsAddedApart) {
  TrainingSetup unfused;
  unfused.attention = AttentionKernel::kUnfused;
  const auto forward = [&](bool biases) {
    return ToSeconds(
        CostOf(Block(biases, false), unfused, {}, Precision::kBf16).forward);
  };
  const double second_bytes = 3.35e12 * 0.8;
  EXPECT_NEAR(forward(true) - forward(false),
              2 * 4.0 * kTokens * 3 * 1792 / second_bytes, 1e-8);
  EXPECT_EQ(CostOf(Block(true, false), {}, {}, Precision::kBf16).forward,
            CostOf(Block(false, false), {}, {}, Precision::kBf16).forward);
}

}  // namespace
}  // namespace pipeloom::emulator
