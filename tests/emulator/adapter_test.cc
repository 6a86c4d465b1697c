// Modules whose low-rank adapters are trained in place of their own weights.
#include <vector>

#include "emulator/cost/profile_cost.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/layer_memory.h"
#include "emulator/stage/layer_weights.h"
#include "emulator/stage/rank_update.h"
#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

constexpr int64_t kRank = 16;
constexpr int64_t kTokens = 4096;
// Widths of Llama-3-8B's attention: into it 4096 and 6144, out of it 4096 and
// 4096.
constexpr int64_t kParameters = kRank * (4096 + 6144 + 4096 + 4096);

JobSpec AdapterJob(int64_t rank, int32_t tp = 1) {
  JobSpec job =
      JobOf({{EmbeddingLayer(), Llama3Block(), Llama3Block(), LossHeadLayer()}},
            {.tp = tp});
  job.model.modules[ModuleId(0)].adapter_rank = rank;
  return job;
}

Stage All() {
  return {.module = ModuleId(0),
          .first_layer = LayerId(0),
          .num_layers = 4,
          .rank = RankId(0)};
}

StageCost CostOf(const JobSpec& job) {
  return StageCostModel(job).Cost(All(), Sequences(1, kTokens), false);
}

TEST(Adapters, OnlyTheyAreTrainedAndOnlyWhereAttentionIs) {
  EXPECT_EQ(TrainedOnGpu(Llama3Block(), {}, kRank).dense, kParameters);
  EXPECT_EQ(TrainedOnGpu(Llama3Block(), {.tp = 4}, kRank).dense,
            kParameters / 4);
  EXPECT_EQ(TrainedOnGpu(LossHeadLayer(), {}, kRank).dense, 0);
  EXPECT_EQ(TrainedOnGpu(LossHeadLayer(), {}, 0).dense,
            ParametersOnGpu(LossHeadLayer(), {}).dense);
  EXPECT_FALSE(HasAdapters(MlaBlock()));
}

TEST(Adapters, AFrozenWeightHasNoGradientProductAndAnAdapterMovesItsBytes) {
  const OpOptions options{.adapter_rank = kRank};
  const LayerOps ops = BuildLayerOps(Llama3Block(), Sequences(1, kTokens), {},
                                     GradientNeeds{}, options);
  double weight_bytes = 0;
  for (const OpStep& step : ops.weight_grad) {
    for (const Op& op : step.compute) {
      EXPECT_EQ(std::get_if<GemmOp>(&op), nullptr);
      weight_bytes += std::get<MemoryOp>(op).bytes;
    }
  }
  // Inputs and gradients of outputs are read once, two bytes each.
  EXPECT_EQ(weight_bytes, 2.0 * kTokens * (4096 + 6144 + 4096 + 4096));
  double more = 0;
  const auto bytes = [](const std::vector<OpStep>& steps) {
    double sum = 0;
    for (const OpStep& step : steps) {
      for (const Op& op : step.compute) {
        if (const auto* m = std::get_if<MemoryOp>(&op)) sum += m->bytes;
      }
    }
    return sum;
  };
  more = bytes(ops.forward) -
         bytes(BuildLayerOps(Llama3Block(), Sequences(1, kTokens), {}, {}, {})
                   .forward);
  EXPECT_EQ(more, kTokens * (7.0 * (4096 + 4096) + 12.0 * (6144 + 4096)));
}

TEST(Adapters, TensorParallelGpusExchangeTheirResultsAndNothingHidesIt) {
  const LayerOps ops =
      BuildLayerOps(Llama3Block(), Sequences(1, kTokens), {.tp = 4},
                    GradientNeeds{}, {.adapter_rank = kRank});
  const auto exposed = [](const std::vector<OpStep>& steps) {
    std::vector<CollectiveOp> found;
    for (const OpStep& step : steps) {
      for (const Op& op : step.communication) {
        if (std::get<CollectiveOp>(op).exposed) {
          found.push_back(std::get<CollectiveOp>(op));
        }
      }
    }
    return found;
  };
  // The input of attention, which the adapter takes whole; two narrow results
  // and the output that becomes a part of the sequence.
  const auto forward = exposed(ops.forward);
  ASSERT_EQ(forward.size(), 4u);
  EXPECT_EQ(forward[0].bytes, 2.0 * kTokens * 4096);
  EXPECT_EQ(forward[1].bytes, 2.0 * kTokens * kRank);
  EXPECT_EQ(forward[2].bytes, 2.0 * kTokens * kRank);
  EXPECT_EQ(forward[3].kind, Collective::kAllToAll);
  EXPECT_EQ(forward[3].bytes, 2.0 * kTokens * 4096 / 4);
  // Frozen weights have no gradient behind which the two scatters could hide.
  EXPECT_EQ(exposed(ops.backward).size(), 5u);
  const LayerOps own = BuildLayerOps(Llama3Block(), Sequences(1, kTokens),
                                     {.tp = 4}, GradientNeeds{}, {});
  EXPECT_TRUE(exposed(own.forward).empty());
  EXPECT_TRUE(exposed(own.fused).empty());
}

TEST(Adapters, ASplitBackwardAddsUpToTheFusedOne) {
  for (const int32_t tp : {1, 2, 8}) {
    const StageCost cost = CostOf(AdapterJob(kRank, tp));
    EXPECT_EQ(cost.fused, cost.backward + cost.weight_grad) << tp;
    EXPECT_GT(cost.weight_grad, kZero);
  }
}

TEST(Adapters, AStepIsShorterThanThatOfAllWeightsAndLongerThanAFrozenOne) {
  const StageCost whole = CostOf(AdapterJob(0));
  const StageCost cost = CostOf(AdapterJob(kRank));
  EXPECT_GT(cost.forward, whole.forward);
  EXPECT_LT(cost.fused, whole.fused);
  EXPECT_LT(cost.weight_grad, whole.weight_grad / 10);
  EXPECT_LT(cost.activations, whole.activations);
}

TEST(Adapters, ModelFlopsHaveNoWeightGradientsOfFrozenWeights) {
  for (const int32_t tp : {1, 4}) {
    const double whole = CostOf(AdapterJob(0, tp)).model_flops.count;
    const double adapters = 2 * 3 * 2.0 * kTokens * kParameters;
    EXPECT_NEAR(CostOf(AdapterJob(kRank, tp)).model_flops.count,
                2 * whole / 3 + adapters, 1e-9 * whole);
    // The layer below all adapters has no backward.
    JobSpec job = AdapterJob(kRank, tp);
    job.model.modules[ModuleId(0)].layers[LayerId(0)] = MlaBlock();
    JobSpec trained = job;
    trained.model.modules[ModuleId(0)].adapter_rank = 0;
    const auto first = [](const JobSpec& of) {
      Stage stage = All();
      stage.num_layers = 1;
      return StageCostModel(of)
          .Cost(stage, Sequences(1, kTokens), false)
          .model_flops.count;
    };
    EXPECT_NEAR(first(job), first(trained) / 3, 1e-9 * first(trained));
  }
}

TEST(Adapters, NothingFlowsBackBelowTheFirstLayerWithAdapters) {
  JobSpec job = AdapterJob(kRank);
  const StageCostModel costs(job);
  // The embedding alone: a look-up without a backward.
  const StageCost embedding = costs.Cost({.module = ModuleId(0),
                                          .first_layer = LayerId(0),
                                          .num_layers = 1,
                                          .rank = RankId(0)},
                                         Sequences(1, kTokens), false);
  EXPECT_EQ(embedding.fused, kZero);
  EXPECT_EQ(embedding.weight_grad, kZero);
}

TEST(Adapters, MemoryHoldsAllWeightsButStatesOfTheAdaptersAlone) {
  const JobSpec job = AdapterJob(kRank);
  const StageMemory memory = StageCostModel(job).Memory(All());
  const int64_t own = Parameters(job.model.modules[ModuleId(0)]);
  EXPECT_EQ(memory.weights, Bytes(2 * (own + 2 * kParameters)));
  EXPECT_EQ(memory.gradients, Bytes(4 * 2 * kParameters));
  EXPECT_EQ(memory.optimizer, Bytes(12 * 2 * kParameters));
  // The inputs after dropout, their mask, and the narrow results.
  EXPECT_EQ(AdapterBytes(Llama3Block(), Sequences(1, kTokens), {}, kRank),
            Bytes(kTokens * (3 * (4096 + 4096) + 4 * kRank)));
}

TEST(Adapters, AnUpdateReducesTheAdaptersAlone) {
  JobSpec job = AdapterJob(kRank);
  job.parallel.dp = 8;
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(All());
  const RankUpdate update = StageCostModel(job).Updates(partition)[RankId(0)];
  ASSERT_EQ(update.parts.size(), 1u);
  EXPECT_EQ(update.parts[0].parameters, 2 * kParameters);
}

}  // namespace
}  // namespace pipeloom::emulator
