// Modules with a tensor and context parallelism of their own in a rank. Sizes
// and times of the tensors that a rank's GPUs send to the next stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/network/collective_cost.h"
#include "emulator/stage/stage_cost.h"
#include "tests/emulator/helpers.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

Partition OneRank(int32_t num_layers) {
  Partition partition;
  partition.num_ranks = 1;
  partition.num_segments = 1;
  partition.stages.push_back(StageOf(num_layers));
  return partition;
}

JobSpec WithOwn(JobSpec job, int32_t tp, int32_t cp = 0) {
  job.module_parallelism = {{.module = "m0", .tp = tp, .cp = cp}};
  EXPECT_THAT(ValidateJobSpec(job), IsOk());
  return job;
}

TEST(ModuleParallelism, TheJobsOwnSizesChangeNothing) {
  const auto layers = EveryLayerKind();
  const auto n = static_cast<int32_t>(layers.size());
  const JobSpec job = JobOf({layers}, {.tp = 4, .cp = 2, .dp = 2});
  const StageCostModel plain(job);
  const StageCostModel same(WithOwn(job, 4, 2));
  const WorkShape shape = Sequences(5, 512);
  for (int32_t first = 0; first < n; ++first) {
    EXPECT_EQ(plain.Cost(StageOf(1, 0, first), shape, true),
              same.Cost(StageOf(1, 0, first), shape, true));
  }
  EXPECT_EQ(plain.Memory(StageOf(n)), same.Memory(StageOf(n)));
  EXPECT_EQ(plain.Updates(OneRank(n)), same.Updates(OneRank(n)));
  EXPECT_EQ(plain.Overhead(OneRank(n), RankId(0)),
            same.Overhead(OneRank(n), RankId(0)));
}

// The rank of tp x cp GPUs is, for this module, several ranks of its own
// layout, each with an equal part of the samples.
TEST(ModuleParallelism, ACopyIsARankOfItsOwnLayoutWithItsShare) {
  const ParallelLayout whole = {.tp = 4, .cp = 2, .dp = 2};
  const auto layers = EveryLayerKind();
  const auto n = static_cast<int32_t>(layers.size());
  for (const auto& [tp, cp] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(::testing::Message() << "tp " << tp << " cp " << cp);
    const int32_t copies = 8 / (tp * cp);
    const StageCostModel shared(WithOwn(JobOf({layers}, whole), tp, cp));
    const StageCostModel apart(
        JobOf({layers}, {.tp = tp, .cp = cp, .dp = 2 * copies}));
    const StageCostModel plain(JobOf({layers}, whole));
    const WorkShape all = Sequences(2 * copies, 512);
    for (int32_t first = 0; first < n; ++first) {
      const Stage stage = StageOf(1, 0, first);
      const StageCost mine = shared.Cost(stage, all, true);
      const StageCost alone = apart.Cost(stage, Sequences(2, 512), true);
      EXPECT_EQ(mine.forward, alone.forward) << first;
      EXPECT_EQ(mine.backward, alone.backward) << first;
      EXPECT_EQ(mine.weight_grad, alone.weight_grad) << first;
      EXPECT_EQ(mine.activations, alone.activations) << first;
      EXPECT_EQ(mine.freed_by_backward, alone.freed_by_backward) << first;
      EXPECT_EQ(mine.input, alone.input) << first;
      EXPECT_EQ(mine.output, alone.output) << first;
      EXPECT_EQ(mine.model_flops, plain.Cost(stage, all, true).model_flops);
    }
    EXPECT_EQ(shared.Memory(StageOf(n)), apart.Memory(StageOf(n)));
    EXPECT_EQ(shared.Overhead(OneRank(n), RankId(0)),
              apart.Overhead(OneRank(n), RankId(0)));
  }
}

// A rank of tp 4 whose module has tp 2: each pair of GPUs does all the work, so
// the times are those of a job with tp 2.
TEST(ModuleParallelism, CopiesThatRepeatTheWorkDoAllOfIt) {
  const auto layers = EveryLayerKind();
  const auto n = static_cast<int32_t>(layers.size());
  JobSpec job = JobOf({layers}, {.tp = 4, .dp = 2});
  job.module_parallelism = {{.module = "m0", .tp = 2, .repeats = true}};
  EXPECT_THAT(ValidateJobSpec(job), IsOk());
  EXPECT_EQ(job.CopiesOf(ModuleId(0)), 1);
  const StageCostModel repeated(job);
  const StageCostModel apart(JobOf({layers}, {.tp = 2, .dp = 2}));
  const WorkShape shape = Sequences(4, 512);
  for (int32_t first = 0; first < n; ++first) {
    const Stage stage = StageOf(1, 0, first);
    const StageCost mine = repeated.Cost(stage, shape, true);
    const StageCost alone = apart.Cost(stage, shape, true);
    EXPECT_EQ(mine.forward, alone.forward) << first;
    EXPECT_EQ(mine.fused, alone.fused) << first;
    EXPECT_EQ(mine.activations, alone.activations) << first;
    // Work done twice counts once.
    EXPECT_EQ(mine.model_flops, alone.model_flops) << first;
  }
  EXPECT_EQ(repeated.Memory(StageOf(n)), apart.Memory(StageOf(n)));
  EXPECT_EQ(repeated.Updates(OneRank(n)), apart.Updates(OneRank(n)));
}

// Gradients: 4 bytes a parameter over the 4 copies in the node, a quarter of
// them over the 2 replicas; weights of 2 bytes back the same way. The update
// moves 30 bytes a parameter, the gradients' norm and clearing 10 more; the
// gradients of other GPUs' shares are cleared too.
TEST(ModuleParallelism, GradientsAreReducedOverCopiesAndThenOverReplicas) {
  JobSpec job =
      WithOwn(JobOf({{Llama3Block()}}, {.tp = 4, .pp = 2, .dp = 2}), 1);
  job.setup.overlap = CommunicationOverlap::kNone;  // All of it shows.
  const StageCostModel costs(job);
  const auto n = static_cast<double>(Parameters(Llama3Block()));
  const LinkSpec node = job.cluster.intra_node;
  const RooflineCost roofline(job.cluster, job.parallel);
  const auto over_replicas = [&](Collective kind, double bytes) {
    return roofline.Cost(CollectiveOp{
        .kind = kind, .group = GroupKind::kData, .size = 2, .bytes = bytes});
  };
  const Duration update = roofline.Cost(
      MemoryOp{.bytes = n / 8 * (30 + 10), .kind = MemoryKind::kOptimizer});
  const Duration cleared =
      roofline.Cost(MemoryOp{.bytes = n * 4 * 7 / 8, .rows = n, .width = 1});
  EXPECT_EQ(costs.Updates(OneRank(1))[RankId(0)].total(),
            RingCollectiveTime(4 * n, 4, node) +
                over_replicas(Collective::kReduceScatter, n) +
                RingCollectiveTime(2 * n, 4, node) +
                over_replicas(Collective::kAllGather, n / 2) + update +
                cleared);
}

TEST(ModuleParallelism, OutputsAreGatheredInTheRankBothWays) {
  const std::vector<LayerSpec> layers(2, Llama3Block());
  const JobSpec job = JobOf({layers, layers}, {.tp = 8});
  const StageCostModel costs(WithOwn(job, 1));
  JobSpec last_only = job;
  last_only.model.edges.clear();
  const StageCostModel unfed(WithOwn(last_only, 1));
  const WorkShape shape = Sequences(16, 512);
  const Duration gather =
      RingCollectiveTime(16.0 * 512 * 4096 * 2, 8, job.cluster.intra_node);
  const StageCost last = costs.Cost(StageOf(1, 0, 1), shape, true);
  const StageCost free_last = unfed.Cost(StageOf(1, 0, 1), shape, true);
  EXPECT_EQ(last.forward, free_last.forward + gather);
  EXPECT_EQ(last.backward, free_last.backward + gather);
  EXPECT_EQ(last.weight_grad, free_last.weight_grad);
  // The output for other modules lies evenly on all GPUs; between the module's
  // own stages, each copy hands on its own part.
  EXPECT_EQ(last.output, Bytes(16 * 512 * 4096 * 2 / 8));
  EXPECT_EQ(costs.Cost(StageOf(1, 0, 0), shape, true),
            unfed.Cost(StageOf(1, 0, 0), shape, true));
  // Nothing goes back to what is frozen and fed by nothing.
  JobSpec frozen = WithOwn(job, 1);
  frozen.training.frozen_modules = {"m0"};
  EXPECT_EQ(
      StageCostModel(frozen).Cost(StageOf(1, 0, 1), shape, false).backward,
      kZero);
  // The smaller one may as well be the one that is fed.
  JobSpec fed = job;
  fed.module_parallelism = {{.module = "m1", .tp = 1}};
  EXPECT_EQ(
      StageCostModel(fed).Cost(StageOf(1, 0, 1), shape, true).forward,
      StageCostModel(job).Cost(StageOf(1, 0, 1), shape, true).forward + gather);
}

TEST(ModuleParallelism, OneSampleGainsNothingAndTheLargestShareCounts) {
  const StageCostModel shared(WithOwn(JobOf({{Vit5bBlock()}}, {.tp = 8}), 1));
  const StageCostModel alone(JobOf({{Vit5bBlock()}}, {.tp = 1}));
  const auto forward = [](const StageCostModel& costs, int64_t images) {
    return costs.Cost(StageOf(1), Sequences(images, 1024), true).forward;
  };
  EXPECT_EQ(forward(shared, 1), forward(alone, 1));
  EXPECT_EQ(forward(shared, 8), forward(alone, 1));
  EXPECT_EQ(forward(shared, 9), forward(alone, 2));
  EXPECT_EQ(forward(shared, 16), forward(alone, 2));
}

// Largest share of instances, by trying every way.
int64_t Optimum(const std::vector<WorkShape>& instances, int32_t copies) {
  int64_t best = INT64_MAX;
  std::vector<int64_t> load(static_cast<size_t>(copies), 0);
  const auto place = [&](const auto& self, size_t i) -> void {
    if (i == instances.size()) {
      best = std::min(best, *std::max_element(load.begin(), load.end()));
      return;
    }
    for (int64_t& l : load) {
      l += instances[i].tokens;
      self(self, i + 1);
      l -= instances[i].tokens;
    }
  };
  place(place, 0);
  return best;
}

TEST(ModuleParallelism, SharesHoldWholeInstancesAsEvenlyAsLongestFirstCan) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const auto copies = static_cast<int32_t>(random.Between(1, 4));
    std::vector<WorkShape> instances;
    WorkShape sum;
    for (int64_t i = random.Between(1, 7); i > 0; --i) {
      instances.push_back(Sequences(1, random.Between(1, 3000)));
      sum += instances.back();
    }
    const WorkShape share = LargestShare(instances, copies);
    const double optimum = static_cast<double>(Optimum(instances, copies));
    EXPECT_GE(static_cast<double>(share.tokens), optimum);
    EXPECT_LE(static_cast<double>(share.tokens),
              optimum * (4.0 / 3 - 1.0 / (3 * copies)) + 1e-9);
    // Known by its tokens only, it is the same, and never less than an even
    // part nor more than all.
    WorkShape known = sum;
    known.share_tokens = share.tokens;
    known.share_squared = share.squared_tokens;
    const WorkShape from_sum = LargestShare(known, copies);
    EXPECT_EQ(from_sum.tokens, share.tokens);
    EXPECT_DOUBLE_EQ(from_sum.squared_tokens, share.squared_tokens);
    for (const WorkShape& s : {share, from_sum, LargestShare(sum, copies)}) {
      EXPECT_GE(s.tokens * copies, sum.tokens);
      EXPECT_LE(s.tokens, sum.tokens);
      EXPECT_GE(s.tokens, sum.longest);
      EXPECT_LE(s.output_tokens, sum.output_tokens);
    }
  }
}

TEST(ModuleParallelism, IsRefusedWhereCopiesDoNotFillTheRank) {
  const auto refused = [](std::vector<ModuleParallelism> own) {
    JobSpec job = JobOf({{Llama3Block()}}, {.tp = 4, .cp = 2});
    job.module_parallelism = std::move(own);
    return ValidateJobSpec(job);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(
      refused({{.module = "m0", .tp = 3}}),
      FailsWith(kInvalid, HasSubstr("parallel.modules[0].tp of \"m0\" is 3; it "
                                    "must divide parallel.tp, which is 4")));
  EXPECT_THAT(refused({{.module = "m0", .tp = 8}}),
              FailsWith(kInvalid, HasSubstr("must divide parallel.tp")));
  EXPECT_THAT(refused({{.module = "m0", .cp = 4}}),
              FailsWith(kInvalid, HasSubstr("must divide parallel.cp")));
  EXPECT_THAT(refused({{.module = "m0", .tp = -1}}),
              FailsWith(kInvalid, HasSubstr("is -1")));
  EXPECT_THAT(refused({{.module = "text", .tp = 2}}),
              FailsWith(kInvalid, HasSubstr("\"text\"; the model has m0")));
  EXPECT_THAT(
      refused({{.module = "m0", .tp = 2}, {.module = "m0", .tp = 1}}),
      FailsWith(kInvalid, HasSubstr("parallel.modules[1] names module \"m0\" "
                                    "a second time")));
  EXPECT_THAT(refused({{.module = "m0", .tp = 2, .cp = 1}}), IsOk());
}

TEST(SendsOfARank, WithoutSequenceParallelismAreWholeOutputs) {
  JobSpec job =
      JobOf({std::vector<LayerSpec>(4, Llama3Block())}, {.tp = 4, .pp = 2});
  const Bytes rows(1024 * Llama3Block().hidden * 2);
  const auto sent = [&] {
    return StageCostModel(job)
        .Cost(StageOf(2), Sequences(1, 1024), true)
        .output;
  };
  const auto time = [&] {
    return StageCostModel(job).TransferTime(RankId(0), RankId(1), sent());
  };
  EXPECT_EQ(sent() * 4, rows);
  const auto in_parts = time();
  job.setup.sequence_parallel = false;
  EXPECT_EQ(sent(), rows);
  EXPECT_GT(time().occupancy, in_parts.occupancy);
  // DeepSpeed's GPUs send a part each and gather it behind the wire.
  job.setup.scattered_sends = true;
  EXPECT_EQ(sent() * 4, rows);
  EXPECT_EQ(time().occupancy, in_parts.occupancy);
  EXPECT_GT(time().time, in_parts.time);
  // With sequence parallelism there is nothing to gather.
  job.setup.sequence_parallel = true;
  EXPECT_EQ(time().time, in_parts.time);
}

}  // namespace
}  // namespace pipeloom::emulator
