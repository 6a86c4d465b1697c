// Where the GPUs of expert groups are, what leaves them, and what the setup of
// a framework changes about experts.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <variant>
#include <vector>

#include "emulator/cost/roofline_cost.h"
#include "emulator/network/collective_cost.h"
#include "emulator/network/group_placement.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/layer_weights.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

constexpr GpuOrder kInside = GpuOrder::kReplicasInside;

ClusterSpec NodesOf(int32_t gpus) {
  ClusterSpec cluster = H800Cluster();
  cluster.gpus_per_node = gpus;
  cluster.num_nodes = 1024 / gpus + 1;
  return cluster;
}

CollectiveOp Over(GroupKind group, int64_t size, double bytes = 1e9) {
  return {.kind = group == GroupKind::kExpert ? Collective::kAllToAll
                                              : Collective::kAllGather,
          .group = group,
          .size = size,
          .bytes = bytes};
}

TEST(ExpertGroups, AreNeighboursAndTheirReplicasAreApart) {
  const ParallelLayout dp64{.ep = 8, .pp = 2, .dp = 64, .order = kInside};
  EXPECT_EQ(GroupSpan(dp64, Over(GroupKind::kExpert, 8)), 8);
  EXPECT_EQ(GroupInNode(NodesOf(8), dp64, Over(GroupKind::kExpert, 8)), 8);
  // The 8 replicas of an expert are 8 GPUs apart: one on each node of 8, all on
  // a rack of 72.
  EXPECT_EQ(ExpertReplicas(dp64), 8);
  EXPECT_EQ(GroupInNode(NodesOf(8), dp64, Over(GroupKind::kExpertData, 8)), 1);
  EXPECT_EQ(GroupInNode(NodesOf(72), dp64, Over(GroupKind::kExpertData, 8)), 8);
  // Those of a dense weight are neighbours.
  EXPECT_EQ(GroupInNode(NodesOf(8), dp64, Over(GroupKind::kData, 64)), 8);
  EXPECT_EQ(GroupSpan(dp64, Over(GroupKind::kData, 64)), 64);
  // Some neighbours among the replicas.
  EXPECT_EQ(GroupSpan(dp64, Over(GroupKind::kData, 8)), 8);
}

TEST(ExpertGroups, PipelineRanksBetweenReplicasSpreadThem) {
  const ParallelLayout apart{.ep = 8, .pp = 4, .dp = 64};
  EXPECT_EQ(GroupSpan(apart, Over(GroupKind::kExpert, 8)), 4 * 7 + 1);
  EXPECT_EQ(GroupInNode(NodesOf(8), apart, Over(GroupKind::kExpert, 8)), 2);
  EXPECT_EQ(GroupInNode(NodesOf(8), apart, Over(GroupKind::kExpertData, 8)), 1);
}

TEST(ExpertGroups, WholeExpertsUseTheGpusOfTensorGroups) {
  ParallelLayout layout{.tp = 2, .ep = 64, .dp = 64, .order = kInside};
  EXPECT_EQ(layout.expert_gpus(), 128);
  EXPECT_EQ(ExpertReplicas(layout), 1);
  layout.expert_tp = 1;
  EXPECT_EQ(layout.expert_gpus(), 64);
  EXPECT_EQ(ExpertReplicas(layout), 2);
  EXPECT_EQ(GroupSpan(layout, Over(GroupKind::kExpert, 64)), 64);
  EXPECT_EQ(GroupInNode(NodesOf(8), layout, Over(GroupKind::kExpert, 64)), 8);
  // An expert is whole, so that each GPU holds half as many.
  EXPECT_EQ(ParametersOnGpu(MoeBlock(), layout).experts,
            int64_t{128} * 3 * 2048 * 768 / 64);
}

TEST(ExpertGroups, ThatFitARackExchangeOverItsFastLinks) {
  // 128 replicas fill two racks, groups of 32 lie inside one.
  const ParallelLayout layout{.ep = 32, .dp = 128, .order = kInside};
  const ClusterSpec rack = NodesOf(72);
  const RooflineCost costs(rack, layout);
  EXPECT_EQ(costs.Cost(Over(GroupKind::kExpert, 32)),
            AllToAllTime(1e9, 32, rack.intra_node));
}

TEST(SentBytes, EqualPartsLeaveTheNodeForTheMembersOnOthers) {
  const CollectiveOp op = Over(GroupKind::kExpert, 16, 1600);
  EXPECT_DOUBLE_EQ(SentByMember(op, 8).network, 800);
  EXPECT_DOUBLE_EQ(SentByMember(op, 8).node, 700);
  EXPECT_DOUBLE_EQ(SentByMember(op, 16).network, 0);
  EXPECT_DOUBLE_EQ(SentByMember(op, 16).node, 1500);
}

TEST(SentBytes, ARowGoesOnceToEachGpuAndOnceToEachNode) {
  CollectiveOp op = Over(GroupKind::kExpert, 16, 1600);
  op.choices = 1;
  EXPECT_DOUBLE_EQ(SentByMember(op, 8).network, 800);
  EXPECT_DOUBLE_EQ(SentByMember(op, 16).node, 1500);
  // Eight experts reach 16 (1 - (15/16)^8) = 6.45 of 16 GPUs, and 2 (1 -
  // (1/2)^8) of two nodes.
  op.choices = 8;
  const double gpus = 16 * (1 - std::pow(15.0 / 16, 8));
  const double nodes = 2 * (1 - std::pow(0.5, 8));
  EXPECT_DOUBLE_EQ(SentByMember(op, 16).node, 1600 * gpus * 15 / 16);
  EXPECT_DOUBLE_EQ(SentByMember(op, 8).network, 1600 * nodes / 2);
  EXPECT_DOUBLE_EQ(SentByMember(op, 8).node,
                   1600 * (gpus * 15 / 16 - nodes / 2));
}

Stage Whole() {
  return {.module = ModuleId(0),
          .first_layer = LayerId(0),
          .num_layers = 1,
          .rank = RankId(0),
          .segment = SegmentId(0)};
}

JobSpec ExpertJob(const TrainingSetup& setup, int32_t ep = 8) {
  JobSpec job = JobOf({{MoeBlock()}}, {.ep = ep, .dp = 16, .order = kInside});
  job.setup = setup;
  return job;
}

StageCost CostWith(const TrainingSetup& setup, int64_t tokens = 4096) {
  return StageCostModel(ExpertJob(setup))
      .Cost(Whole(), Sequences(1, tokens), true);
}

TEST(ExpertSetup, DispatchOncePerGpuSendsLess) {
  TrainingSetup once;
  once.dispatch = ExpertDispatch::kEachGpu;
  EXPECT_LT(CostWith(once).forward, CostWith({}).forward);
  EXPECT_EQ(CostWith(once).weight_grad, CostWith({}).weight_grad);
}

TEST(ExpertSetup, OverlappedDispatchHidesBehindOtherWork) {
  TrainingSetup hides;
  hides.overlap_dispatch = true;
  const StageCost shown = CostWith({});
  const StageCost hidden = CostWith(hides);
  EXPECT_LT(hidden.forward, shown.forward);
  EXPECT_LT(hidden.fused, shown.fused);
  JobSpec alone = ExpertJob(hides, /*ep=*/1);
  EXPECT_EQ(
      StageCostModel(alone).Cost(Whole(), Sequences(1, 4096), true).forward,
      StageCostModel(ExpertJob({}, 1))
          .Cost(Whole(), Sequences(1, 4096), true)
          .forward);
}

// The first forward and the last backward of a step have no other microbatch.
TEST(ExpertSetup, NothingHidesTheDispatchOfAMicrobatchForEachRank) {
  const auto forward = [](bool overlaps, int32_t pp, int32_t microbatches) {
    JobSpec job = ExpertJob({});
    job.setup.overlap_dispatch = overlaps;
    job.parallel.pp = pp;
    job.training.microbatches = microbatches;
    return ToSeconds(
        StageCostModel(job).Cost(Whole(), Sequences(1, 4096), true).forward);
  };
  const double shown = forward(false, 1, 8);
  EXPECT_NEAR(forward(true, 1, 1), shown, 1e-8);
  const double hidden = shown - forward(true, 1, 1'000'000);
  EXPECT_GT(hidden, 0.05 * shown);
  EXPECT_NEAR(shown - forward(true, 1, 8), hidden * 7 / 8, 1e-8);
  EXPECT_NEAR(shown - forward(true, 4, 8), hidden * 4 / 8, 1e-8);
  EXPECT_NEAR(forward(true, 4, 2), shown, 1e-8);
}

TEST(ExpertSetup, OverlapOfTensorParallelismHidesNoDispatch) {
  TrainingSetup all;
  all.overlap = CommunicationOverlap::kAll;
  EXPECT_EQ(CostWith(all).forward, CostWith({}).forward);
}

TEST(ExpertSetup, ImbalanceStretchesTheExpertsAlone) {
  TrainingSetup twice;
  twice.expert_imbalance = 2;
  const StageCost even = CostWith({});
  const StageCost uneven = CostWith(twice);
  EXPECT_GT(uneven.forward, even.forward);
  EXPECT_LT(uneven.forward, 2 * even.forward);
}

// A row of an expert of 768 in a layer of 2048 keeps its input, what goes into
// the gated activation and what comes out of it, 16 bits each; eight rows a
// token.
TEST(ExpertSetup, TheFullestGpuKeepsTheRowsThatItsExpertsGet) {
  constexpr int64_t kTokens = 4096;
  constexpr int64_t kRows = 8 * kTokens * (2 * 2048 + 4 * 768 + 2 * 768);
  const auto cost = [](double imbalance, int32_t ep) {
    TrainingSetup setup;
    setup.expert_imbalance = imbalance;
    return StageCostModel(ExpertJob(setup, ep))
        .Cost(Whole(), Sequences(1, kTokens), true);
  };
  const StageCost even = cost(1, 8);
  const StageCost uneven = cost(1.5, 8);
  EXPECT_EQ(uneven.activations, even.activations + Bytes(kRows / 2));
  EXPECT_GT(uneven.scratch.fused, even.scratch.fused);
  EXPECT_GT(uneven.scratch.forward, even.scratch.forward);
  // A GPU that holds all experts gets the rows of all, however they differ.
  EXPECT_EQ(cost(1.5, 1), cost(1, 1));
}

// Bytes that tensor-parallel GPUs exchange in collectives of a kind.
double TensorBytes(const std::vector<OpStep>& steps, Collective kind) {
  double sum = 0;
  for (const OpStep& step : steps) {
    for (const Op& op : step.communication) {
      const auto* collective = std::get_if<CollectiveOp>(&op);
      if (collective != nullptr && collective->kind == kind &&
          collective->group == GroupKind::kTensor) {
        sum += collective->bytes;
      }
    }
  }
  return sum;
}

TEST(ExpertSetup, GpusOfAnExpertGatherTheRowsThatAnAllToAllBrought) {
  constexpr int64_t kTokens = 4096;
  const auto ops = [](int32_t expert_tp, int32_t ep, ExpertDispatch dispatch) {
    return BuildLayerOps(MoeBlock(), Sequences(1, kTokens),
                         {.tp = 4, .ep = ep, .dp = 8, .expert_tp = expert_tp},
                         {}, {.dispatch = dispatch, .expert_imbalance = 1.5});
  };
  constexpr double kToken = 2 * 2048;  // Bytes.
  const LayerOps whole = ops(1, 8, ExpertDispatch::kEachExpert);
  const LayerOps divided = ops(4, 8, ExpertDispatch::kEachExpert);
  const double rows = 1.5 * 8 * kTokens * kToken;
  for (const auto& [pass, gathers, scatters] :
       {std::tuple(&LayerOps::forward, Collective::kAllGather,
                   Collective::kReduceScatter),
        std::tuple(&LayerOps::backward, Collective::kReduceScatter,
                   Collective::kAllGather)}) {
    EXPECT_NEAR(
        TensorBytes(divided.*pass, gathers) - TensorBytes(whole.*pass, gathers),
        rows, 1);
    EXPECT_NEAR(TensorBytes(divided.*pass, scatters) -
                    TensorBytes(whole.*pass, scatters),
                rows, 1);
  }
  // Without an all-to-all, tokens are gathered once, as for the shared expert.
  EXPECT_EQ(TensorBytes(ops(4, 1, ExpertDispatch::kEachExpert).forward,
                        Collective::kAllGather),
            TensorBytes(whole.forward, Collective::kAllGather));
  EXPECT_EQ(TensorBytes(ops(4, 8, ExpertDispatch::kEachGpu).forward,
                        Collective::kAllGather),
            TensorBytes(whole.forward, Collective::kAllGather));
}

TEST(ExpertSetup, GpusOfAnExpertKeepTheWholeOfItsRows) {
  constexpr int64_t kTokens = 4096;
  constexpr int64_t kRows = 8 * kTokens * 2 * 2048;  // Bytes.
  const auto kept = [](int32_t expert_tp) {
    const StageCostModel model(JobOf(
        {{MoeBlock()}}, {.tp = 4, .ep = 2, .dp = 2, .expert_tp = expert_tp}));
    return model.Cost(Whole(), Sequences(1, kTokens), true).activations;
  };
  EXPECT_EQ(kept(4) - kept(1), Bytes(kRows * 3 / 4));
  EXPECT_EQ(kept(0), kept(4));
}

TEST(ExpertSetup, GraphsLaunchWhatTheHostCannot) {
  TrainingSetup host;
  host.host_per_kernel = Microseconds(10);
  const Duration slow = CostWith(host, 64).forward;
  host.graphs = CudaGraphs::kLayers;
  const Duration layers = CostWith(host, 64).forward;
  host.graphs = CudaGraphs::kIteration;
  const Duration whole = CostWith(host, 64).forward;
  EXPECT_GT(slow, layers);
  EXPECT_GT(layers, whole);
  EXPECT_EQ(whole, CostWith({}, 64).forward);
  // The host launches more for more experts on a GPU.
  TrainingSetup launches;
  launches.host_per_kernel = Microseconds(10);
  const auto least = [&](int32_t ep) {
    return StageCostModel(ExpertJob(launches, ep))
        .Cost(Whole(), Sequences(1, 8), true)
        .forward;
  };
  EXPECT_GT(least(4), least(8));
}

TEST(ExpertSetup, ShardedExpertsAreGatheredOverTheirOwnReplicas) {
  // With as many expert-parallel GPUs as replicas every GPU has its experts
  // alone: nothing of them is gathered.
  const auto forward = [](int32_t ep, int64_t expert_width) {
    JobSpec job = ExpertJob({}, ep);
    job.model.modules[ModuleId(0)].layers[LayerId(0)].ffn.expert_hidden =
        expert_width;
    const auto with = [&](OptimizerSharding sharding) {
      job.training.optimizer_sharding = sharding;
      return StageCostModel(job).Cost(Whole(), Sequences(1, 16), true).forward;
    };
    return with(OptimizerSharding::kZero3) - with(OptimizerSharding::kZero1);
  };
  EXPECT_GT(forward(8, 768), forward(16, 768));
  EXPECT_EQ(GroupInNode(NodesOf(8), {.ep = 8, .dp = 16, .order = kInside},
                        Over(GroupKind::kExpertData, 2)),
            1);
}

}  // namespace
}  // namespace pipeloom::emulator
