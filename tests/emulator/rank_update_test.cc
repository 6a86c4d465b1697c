#include "emulator/stage/rank_update.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "emulator/network/ring_model.h"
#include "emulator/stage/stage_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

TEST(RankUpdate, WhatIsReducedAndGatheredDependsOnTheSharding) {
  for (const OptimizerSharding sharding :
       {OptimizerSharding::kNone, OptimizerSharding::kZero1,
        OptimizerSharding::kZero2, OptimizerSharding::kZero3}) {
    JobSpec job =
        JobOf({{Vit5bBlock(), Vit5bBlock()},
               {EmbeddingLayer(), Llama3Block(), MoeBlock(), LossHeadLayer()}},
              {.tp = 2, .ep = 2, .pp = 2, .dp = 4});
    job.training.optimizer_sharding = sharding;
    job.model.modules[ModuleId(0)].precision = Precision::kFp32;
    Partition partition;
    partition.num_ranks = 2;
    partition.num_segments = 1;
    for (const auto& [module, rank, first, layers] :
         {std::tuple(0, 0, 0, 2), std::tuple(1, 0, 0, 2),
          std::tuple(1, 1, 2, 2)}) {
      Stage stage = StageOf(layers, module, first);
      stage.rank = RankId(rank);
      partition.stages.push_back(stage);
    }
    const auto updates = StageCostModel(job).Updates(partition);
    ASSERT_EQ(updates.size(), 2);
    for (const RankId rank : updates.ids()) {
      const RankUpdate& update = updates[rank];
      EXPECT_EQ(update.parts.size(), rank == RankId(0) ? 2u : 1u);
      EXPECT_EQ(update.reduce > kZero, sharding < OptimizerSharding::kZero2);
      // Without sharding gradients are reduced and gathered before the step.
      EXPECT_EQ(update.gather > kZero,
                sharding == OptimizerSharding::kZero1 ||
                    sharding == OptimizerSharding::kZero2);
      EXPECT_GT(update.optimizer, kZero);
    }
  }
}

// 16 replicas on two nodes.
TEST(RankUpdate, AGroupHasOneCopyOfTheOptimizerAndTheSumOfAllReplicas) {
  const auto job = [](int32_t dp, OptimizerSharding sharding, int32_t group) {
    JobSpec made = JobOf({{Llama3Block(), Llama3Block()}}, {.dp = dp});
    made.training.optimizer_sharding = sharding;
    made.setup.optimizer_group = group;
    return StageCostModel(made);
  };
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(2, 0, 0));
  const auto update = [&](const StageCostModel& costs) {
    return costs.Updates(partition)[RankId(0)];
  };
  const auto memory = [&](const StageCostModel& costs) {
    return costs.Memory(partition.stages[StageId(0)]).optimizer;
  };
  constexpr auto kZero1 = OptimizerSharding::kZero1;
  const StageCostModel grouped = job(16, kZero1, 8);
  const StageCostModel whole = job(16, kZero1, 0);
  const StageCostModel node = job(8, kZero1, 0);
  EXPECT_EQ(update(grouped).reduce,
            update(job(16, OptimizerSharding::kNone, 0)).reduce);
  EXPECT_GT(update(grouped).reduce, update(whole).reduce);
  // Weights stay in the node.
  EXPECT_LT(update(grouped).gather, update(whole).gather);
  EXPECT_EQ(update(grouped).optimizer, update(node).optimizer);
  EXPECT_EQ(memory(grouped), memory(node));
  EXPECT_EQ(memory(whole) * 2, memory(node));
  // A group of all replicas, or more, is the same as none.
  EXPECT_EQ(update(job(16, kZero1, 16)), update(whole));
  EXPECT_EQ(update(job(16, kZero1, 99)), update(whole));
}

// 16 replicas on two nodes, in two groups that share weights and gradients too.
TEST(RankUpdate, FullyShardedGroupsGatherInsideAndReduceOverAllReplicas) {
  const auto job = [](int32_t dp, OptimizerSharding sharding, int32_t group) {
    JobSpec made = JobOf({{Llama3Block(), Llama3Block()}}, {.dp = dp});
    made.training.optimizer_sharding = sharding;
    made.setup.optimizer_group = group;
    return StageCostModel(made);
  };
  const Stage stage = StageOf(2, 0, 0);
  const WorkShape shape = Sequences(1, 256);
  constexpr auto kZero2 = OptimizerSharding::kZero2;
  constexpr auto kZero3 = OptimizerSharding::kZero3;
  const StageCostModel grouped = job(16, kZero3, 8);
  const StageCostModel whole = job(16, kZero3, 0);
  const StageCostModel node = job(8, kZero3, 0);
  EXPECT_EQ(grouped.Memory(stage), node.Memory(stage));
  const StageCost cost = grouped.Cost(stage, shape, true);
  EXPECT_EQ(cost.forward, node.Cost(stage, shape, true).forward);
  EXPECT_LT(cost.forward, whole.Cost(stage, shape, true).forward);
  EXPECT_GT(cost.weight_grad, whole.Cost(stage, shape, true).weight_grad);
  // Each of two groups needs the sum of both.
  EXPECT_GT(job(16, kZero2, 8).Cost(stage, shape, true).weight_grad,
            job(16, kZero2, 0).Cost(stage, shape, true).weight_grad);
  // Gradients that passes have reduced are not reduced again at the end.
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(stage);
  for (const auto sharding : {kZero2, kZero3}) {
    EXPECT_EQ(job(16, sharding, 8).Updates(partition)[RankId(0)].reduce, kZero);
  }
  // A group of all replicas, or more, is the same as none.
  EXPECT_EQ(job(16, kZero3, 99).Cost(stage, shape, true).fused,
            whole.Cost(stage, shape, true).fused);
}

// A layer has seven tensors: five matrices and two vectors of its norms.
TEST(RankUpdate, OwnersOfWholeTensorsBroadcastThemInTurn) {
  const auto job = [](int32_t dp, bool broadcasts) {
    JobSpec made = JobOf({{Llama3Block(), Llama3Block()}}, {.dp = dp});
    made.training.optimizer_sharding = OptimizerSharding::kZero1;
    made.setup.broadcasts_weights = broadcasts;
    return made;
  };
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(2, 0, 0));
  const auto update = [&](const JobSpec& made) {
    return StageCostModel(made).Updates(partition)[RankId(0)];
  };
  JobSpec whole = job(16, true);
  whole.training.optimizer_sharding = OptimizerSharding::kNone;
  EXPECT_EQ(update(job(16, true)).reduce, update(whole).reduce);
  const ClusterSpec& cluster = whole.cluster;
  const RingLinks links{
      .node_bytes_per_second = cluster.intra_node.bandwidth.bytes_per_second,
      .nic_bytes_per_second = cluster.inter_node.bandwidth.bytes_per_second};
  const RingGroup ring{16, cluster.gpus_per_node};
  const int64_t matrices = 10;
  const int64_t vectors = 4;
  EXPECT_NEAR(
      ToSeconds(update(job(16, true)).gather - update(job(16, false)).gather),
      static_cast<double>(matrices) * BroadcastWaitSeconds(1e8, ring, links) +
          static_cast<double>(vectors) * BroadcastWaitSeconds(2, ring, links),
      1e-8);
  // On 64 replicas most own nothing, and the largest tensor, half of the first
  // feed-forward product, is its owner's.
  const auto optimizer = [&](int32_t dp, bool broadcasts) {
    return StageCostModel(job(dp, broadcasts))
        .Memory(partition.stages[StageId(0)])
        .optimizer;
  };
  EXPECT_EQ(optimizer(64, true), Bytes(int64_t{4096} * 14336 * 12));
  EXPECT_LT(optimizer(64, false), optimizer(64, true));
  EXPECT_EQ(optimizer(2, true), optimizer(2, false));
  EXPECT_GT(update(job(64, true)).optimizer, update(job(64, false)).optimizer);
}

// Ten matrices, of which the largest is its owner's on 64 replicas.
TEST(RankUpdate, OwnersThatRunOperatorsOfPyTorchMoveMoreBytes) {
  const auto update = [](int32_t dp, bool broadcasts, bool eager) {
    JobSpec made = JobOf({{Llama3Block(), Llama3Block()}}, {.dp = dp});
    made.training.optimizer_sharding = OptimizerSharding::kZero1;
    made.setup.broadcasts_weights = broadcasts;
    made.setup.eager_pointwise = eager;
    made.setup.gradient_bytes = 2;
    Partition partition;
    partition.num_ranks = 1;
    partition.num_segments = 1;
    partition.stages.push_back(StageOf(2, 0, 0));
    return ToSeconds(
        StageCostModel(made).Updates(partition)[RankId(0)].optimizer);
  };
  const DeviceSpec device = JobOf({{Llama3Block()}}, {.dp = 1}).cluster.device;
  const double rate =
      device.memory_bandwidth.bytes_per_second * device.memory_efficiency;
  // Per parameter of the owner 122 bytes in place of 40, and 8 in place of the
  // 2 of cleared gradients (all but the owner's) for every parameter.
  const double layer =
      2 * (4096.0 * 4096 + 4096.0 * 1024) + 3 * 4096.0 * 14336 + 2 * 4096.0;
  const auto more = [&](int32_t dp, double owned) {
    return (82 * owned + 8 * 2 * layer - 2 * 2 * layer * (1 - 1.0 / dp)) / rate;
  };
  EXPECT_NEAR(update(4, true, true) - update(4, true, false),
              more(4, 2 * layer / 4), 1e-6);
  EXPECT_NEAR(update(64, true, true) - update(64, true, false),
              more(64, 4096.0 * 14336), 1e-6);
  // Without owners the update is the same.
  EXPECT_EQ(update(64, false, true), update(64, false, false));
}

TEST(RankUpdate, BucketsHaveFortyMillionParametersOrAMillionAReplica) {
  EXPECT_EQ(BucketsOf(39'000'000, 16, 0), 1);
  EXPECT_EQ(BucketsOf(400'000'000, 16, 0), 10);
  EXPECT_EQ(BucketsOf(400'000'001, 16, 0), 11);
  EXPECT_EQ(BucketsOf(400'000'000, 100, 0), 4);
  EXPECT_EQ(BucketsOf(1, 1'000'000, 0), 1);
  EXPECT_EQ(BucketsOf(int64_t{1} << 50, 1, 0), 1024);
  // A set size holds whatever the number of replicas is.
  EXPECT_EQ(BucketsOf(400'000'000, 100, 200'000'000), 2);
  EXPECT_EQ(BucketsOf(400'000'001, 1, 200'000'000), 3);
}

// A rank of up to four parts, and spans of one replica.
RankUpdate RandomUpdate(Random& random) {
  RankUpdate update;
  update.reduce = Nanoseconds(random.Between(1, 4000));
  update.gather = Nanoseconds(random.Between(1, 4000));
  for (int64_t p = random.Between(1, 4); p > 0; --p) {
    update.parts.push_back({StageId(static_cast<int32_t>(update.parts.size())),
                            random.Between(1, 1000),
                            static_cast<int32_t>(random.Between(1, 5))});
  }
  return update;
}

PartSpans RandomSpans(const RankUpdate& update, Random& random) {
  PartSpans spans;
  for (size_t p = 0; p < update.parts.size(); ++p) {
    const int64_t begin = random.Between(0, 3000);
    spans.push_back({begin, begin + random.Between(1, 2000)});
  }
  return spans;
}

// The times of all buckets in the order of their collectives, with the
// nanoseconds that each takes.
std::vector<std::pair<double, double>> BucketTimes(
    const RankUpdate& update, Duration whole,
    const std::vector<const PartSpans*>& replicas, bool ends) {
  double parameters = 0;
  for (const auto& part : update.parts) {
    parameters += static_cast<double>(part.parameters);
  }
  std::vector<std::pair<double, double>> times;
  const size_t count = update.parts.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t p = ends ? count - 1 - i : i;
    const int32_t n = update.parts[p].buckets;
    for (int32_t k = 0; k < n; ++k) {
      double at = ends ? 0 : 1e18;
      for (const PartSpans* spans : replicas) {
        const double begin = static_cast<double>((*spans)[p].begin);
        const double end = static_cast<double>((*spans)[p].end);
        const double own = begin + (end - begin) * (k + (ends ? 1 : 0)) / n;
        at = ends ? std::max(at, own) : std::min(at, own);
      }
      times.emplace_back(
          at, static_cast<double>(whole.count()) *
                  static_cast<double>(update.parts[p].parameters) / parameters /
                  n);
    }
  }
  return times;
}

TEST(RankUpdate, ReductionsEndAndForwardsWaitAsAWalkOverAllBucketsSays) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const RankUpdate update = RandomUpdate(random);
    const PartSpans a = RandomSpans(update, random);
    const PartSpans b = RandomSpans(update, random);
    const std::vector<const PartSpans*> both = {&a, &b};
    double free = 0;
    for (const auto& [ready, takes] :
         BucketTimes(update, update.reduce, both, true)) {
      free = std::max(free, ready) + takes;
    }
    const double buckets = 20;  // Each rounds by a nanosecond.
    EXPECT_NEAR(static_cast<double>(ReducedAt(update, both)), free, buckets)
        << "seed " << seed;
    double wait = 0;
    double arrived = 0;
    for (const auto& [needed, takes] :
         BucketTimes(update, update.gather, both, false)) {
      arrived += takes;
      wait = std::max(wait, arrived - needed);
    }
    EXPECT_NEAR(static_cast<double>(WaitForWeights(update, both)), wait,
                buckets)
        << "seed " << seed;
  }
}

TEST(RankUpdate, PartsThatDoNotRunAreReducedLastAndGatheredInTheirTurn) {
  RankUpdate update;
  update.reduce = Nanoseconds(100);
  update.gather = Nanoseconds(100);
  update.parts = {{StageId(0), 10, 1}, {StageId(1), 30, 1}};
  const PartSpans spans = {{}, {.begin = 40, .end = 90}};
  const PartSpans* const one = &spans;
  EXPECT_EQ(ReducedAt(update, {&one, 1}), 90 + 75 + 25);
  EXPECT_EQ(WaitForWeights(update, {&one, 1}), 25 + 75 - 40);
}

// Updates of a model of four layers, of which the embedding and the first block
// are on rank 0, the others on `last`.
IdVector<RankId, RankUpdate> WithTable(bool tied, const JobSpec& given,
                                       int32_t last) {
  JobSpec job = given;
  job.model.modules[ModuleId(0)].layers[LayerId(3)].tied = tied;
  Partition partition{.num_ranks = 3, .num_segments = 1};
  partition.stages.push_back(StageOf(2));
  partition.stages.push_back(StageOf(2, 0, 2));
  partition.stages[StageId(1)].rank = RankId(last);
  return StageCostModel(job).Updates(partition);
}

TEST(RankUpdate, ATableOnTwoRanksIsSummedBetweenThem) {
  JobSpec job =
      JobOf({{EmbeddingLayer(), Llama3Block(), Llama3Block(), LossHeadLayer()}},
            {.tp = 4, .pp = 3, .dp = 2});
  const auto more = [&](int32_t last, int32_t rank) {
    return WithTable(true, job, last)[RankId(rank)].total() -
           WithTable(false, job, last)[RankId(rank)].total();
  };
  const auto half = [&](int64_t bytes) {
    return StageCostModel(job)
        .TransferTime(RankId(0), RankId(2), Bytes(bytes / 2))
        .time;
  };
  const int64_t table = int64_t{4096} * 128256 / 4;  // On a GPU.
  EXPECT_EQ(more(2, 0), 2 * half(4 * table));
  EXPECT_EQ(more(2, 2), more(2, 0));
  EXPECT_EQ(more(2, 1), kZero);
  // On one rank there is one table; each replica sums its own part of it.
  EXPECT_EQ(more(0, 0), kZero);
  job.training.optimizer_sharding = OptimizerSharding::kZero2;
  EXPECT_EQ(more(2, 0), 2 * half(2 * table));
  job.training.frozen_modules = {"m0"};
  EXPECT_EQ(more(2, 0), kZero);
}

}  // namespace
}  // namespace pipeloom::emulator
