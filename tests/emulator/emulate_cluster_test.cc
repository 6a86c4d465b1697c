#include "emulator/cluster/emulate_cluster.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "emulator/cost/roofline_cost.h"
#include "emulator/stage/sample_step.h"
#include "emulator/stage/stage_cost.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/emulator/mixed_ranks.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::RandomGraph;
using testing::RandomOrders;
using testing::UniformGraph;

ExecutionPlan OneFOneB(int32_t microbatches, Duration epilogue = kZero) {
  StageGraph graph = UniformGraph({.ranks = 4,
                                   .microbatches = microbatches,
                                   .weight_grad = kZero,
                                   .delay = Microseconds(20)});
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) rank.epilogue = epilogue;
  graph = graph.WithRanks(ranks);
  return LowerNaively(graph, OneFOneBOrders(graph));
}

// Each rank has one stage, its own number.
IdVector<RankId, RankUpdate> UpdatesOf(int32_t ranks, double reduce_us,
                                       double optimizer_us, double gather_us) {
  IdVector<RankId, RankUpdate> updates;
  for (int32_t r = 0; r < ranks; ++r) {
    updates.push_back({.reduce = Microseconds(reduce_us),
                       .optimizer = Microseconds(optimizer_us),
                       .gather = Microseconds(gather_us),
                       .parts = {{StageId(r), 1000, /*buckets=*/4}}});
  }
  return updates;
}

ClusterStep Emulate(const std::vector<const ExecutionPlan*>& replicas,
                    const IdVector<RankId, RankUpdate>& updates,
                    const ClusterOptions& options = {}) {
  const auto result = EmulateCluster(replicas, updates, options);
  EXPECT_THAT(result, IsOk());
  return result.ok() ? result->step : ClusterStep();
}

TEST(EmulateCluster, WithoutOverlapEqualReplicasTakeWhatOnePlanTakes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const StageGraph graph = RandomGraph(
        seed, {.max_ranks = 5, .max_microbatches = 4, .with_epilogues = true});
    Random random(seed);
    const ExecutionPlan plan = LowerNaively(graph, RandomOrders(graph, random));
    ASSERT_OK_AND_ASSIGN(const StepTrace trace, EmulateStep(plan));
    EXPECT_EQ(Emulate({&plan, &plan, &plan}, {}).finish, trace.finish);
    // The epilogue in parts.
    IdVector<RankId, RankUpdate> updates;
    for (const RankSpec& rank : graph.ranks()) {
      const Duration third = rank.epilogue / 3;
      updates.push_back({.reduce = third,
                         .optimizer = third,
                         .gather = rank.epilogue - 2 * third});
    }
    EXPECT_EQ(
        Emulate({&plan, &plan}, updates, {.overlap_reduction = false}).finish,
        trace.finish)
        << "seed " << seed;
  }
}

TEST(EmulateCluster, AReductionHidesBehindTheLastBackwardAsTheClosedFormSays) {
  // The last to finish is rank 0: its last backward ends with the pipeline. A
  // bucket of four is ready after each quarter of it.
  const ExecutionPlan plan = OneFOneB(6);
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, EmulateStep(plan));
  const SimTime end = trace.finish;
  const Duration last = plan.graph.tasks().items().back().duration;
  for (const double reduce_us : {100.0, 1'000.0, 1'990.0, 4'000.0, 9'000.0}) {
    const auto updates = UpdatesOf(4, reduce_us, 30, 70);
    const Duration bucket = Microseconds(reduce_us) / 4;
    // Either each bucket is gone before the next is ready, or the link is busy
    // from the first one on.
    const SimTime reduced =
        std::max(end + bucket, end - last * 3 / 4 + 4 * bucket);
    const ClusterStep step = Emulate({&plan, &plan}, updates);
    EXPECT_EQ(step.ranks[RankId(0)].reduced, reduced) << reduce_us;
    EXPECT_EQ(step.ranks[RankId(0)].gathered, reduced + Microseconds(100));
    EXPECT_EQ(Emulate({&plan, &plan}, updates, {.overlap_reduction = false})
                  .ranks[RankId(0)]
                  .reduced,
              end + Microseconds(reduce_us));
  }
}

TEST(EmulateCluster, TheSlowestReplicaHoldsUpAllOthers) {
  const ExecutionPlan small = OneFOneB(4);
  const ExecutionPlan large = OneFOneB(9);
  const auto updates = UpdatesOf(4, 100, 30, 70);
  const ClusterStep both = Emulate({&small, &large, &small}, updates);
  EXPECT_EQ(both.finish, Emulate({&large}, updates).finish);
  EXPECT_EQ(both.slowest_replica(), 1);
  EXPECT_LT(both.pipeline_finish[0], both.pipeline_finish[1]);
  EXPECT_EQ(both.tail(), both.finish - both.pipeline_finish[1]);
  // A straggler in one of them.
  ClusterOptions options;
  options.slow = {{.replica = 2, .rank = RankId(1), .factor = 3}};
  const ClusterStep slow = Emulate({&large, &large, &large}, updates, options);
  EXPECT_EQ(slow.slowest_replica(), 2);
  EXPECT_GT(slow.finish, both.finish);
  EXPECT_EQ(slow.pipeline_finish[0], both.pipeline_finish[1]);
  // The norm of the gradients is known when the last rank has reduced.
  options = {};
  options.clip_gradients = true;
  const ClusterStep clipped = Emulate({&large}, updates, options);
  for (const ClusterStep::Rank& rank : clipped.ranks) {
    EXPECT_GE(rank.updated, clipped.ranks[RankId(0)].reduced);
  }
}

TEST(EmulateCluster, ReuseChangesNothingAndCountsWhatItSaves) {
  std::vector<ExecutionPlan> plans;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const StageGraph graph =
        UniformGraph({.ranks = 3,
                      .microbatches = 2 + static_cast<int32_t>(seed % 4),
                      .forward = Microseconds(seed % 8 == 0 ? 900 : 1000),
                      .weight_grad = kZero});
    plans.push_back(LowerNaively(graph, OneFOneBOrders(graph)));
  }
  std::vector<const ExecutionPlan*> replicas;
  for (const ExecutionPlan& plan : plans) replicas.push_back(&plan);
  const auto updates = UpdatesOf(3, 500, 30, 70);
  ClusterOptions options;
  options.gpus_per_rank = 8;
  options.slow = {{.replica = 5, .rank = RankId(0), .factor = 1.25}};
  ASSERT_OK_AND_ASSIGN(const ClusterResult on,
                       EmulateCluster(replicas, updates, options));
  options.reuse = false;
  ASSERT_OK_AND_ASSIGN(const ClusterResult off,
                       EmulateCluster(replicas, updates, options));
  EXPECT_EQ(on.step, off.step);
  EXPECT_EQ(on.counters.replicas, 40);
  // Four sizes, one of them of two speeds, and the straggler.
  EXPECT_EQ(on.counters.replicas_emulated, 6);
  EXPECT_EQ(on.counters.gpus, 40 * 3 * 8);
  EXPECT_EQ(on.counters.gpus_emulated, 6 * 3);
  EXPECT_GT(on.counters.hit_ratio(), 0.97);
  EXPECT_EQ(off.counters.replicas_emulated, 40);
  EXPECT_EQ(off.counters.gpus_emulated, off.counters.gpus);
  EXPECT_EQ(off.counters.hit_ratio(), 0);
}

TEST(EmulateCluster, WhatDoesNotFitIsRefusedByName) {
  const ExecutionPlan plan = OneFOneB(2);
  ExecutionPlan other = plan;
  other.programs[RankId(1)].clear();
  EXPECT_THAT(EmulateCluster({}, {}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("needs a replica")));
  EXPECT_THAT(EmulateCluster({&plan}, UpdatesOf(3, 1, 1, 1)),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("updates of 3 ranks; the plans have 4")));
  EXPECT_THAT(EmulateCluster({&plan, &other}, {}),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("replica 1: the plan deadlocks")));
  ClusterOptions options;
  options.slow = {{.replica = 7}};
  EXPECT_THAT(EmulateCluster({&plan}, {}, options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("replica 7 does not exist")));
}

TEST(MixRanks, EveryRankHasTheTimesOfItsKind) {
  const StageGraph slow = UniformGraph({.ranks = 3, .microbatches = 5});
  const StageGraph fast = UniformGraph({.ranks = 3,
                                        .microbatches = 5,
                                        .forward = Microseconds(500),
                                        .backward = Microseconds(700),
                                        .delay = Microseconds(9)});
  ASSERT_OK_AND_ASSIGN(const StageGraph mixed,
                       MixRanks({&slow, &fast}, {0, 1, 0}));
  for (const TaskId t : mixed.task_ids()) {
    const StageGraph& kind = mixed.task(t).rank == RankId(1) ? fast : slow;
    EXPECT_EQ(mixed.task(t), kind.task(t));
  }
  for (const EdgeId e : mixed.edge_ids()) {
    const RankId from = mixed.task(mixed.edge(e).from).rank;
    EXPECT_EQ(mixed.edge(e), (from == RankId(1) ? fast : slow).edge(e));
  }
  ASSERT_OK_AND_ASSIGN(const StageGraph same,
                       MixRanks({&slow, &fast}, {0, 0, 0}));
  EXPECT_EQ(same, slow);
  const StageGraph other = UniformGraph({.ranks = 3, .microbatches = 6});
  EXPECT_THAT(MixRanks({&slow, &other}, {0, 1, 0}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("kind 1 has 3 ranks")));
  EXPECT_THAT(MixRanks({&slow, &fast}, {0, 2, 0}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("kind_of_rank[1] is 2")));
}

TEST(SampleSteps, RepeatWithTheirSeedAndKeepTheMean) {
  const ExecutionPlan plan = OneFOneB(8);
  const Jitter jitter{.compute = 0.1, .links = 0.2, .seed = 5, .samples = 200};
  ASSERT_OK_AND_ASSIGN(const SampledStep a, SampleSteps(plan, {}, jitter));
  ASSERT_OK_AND_ASSIGN(const SampledStep b, SampleSteps(plan, {}, jitter));
  EXPECT_EQ(a.samples, b.samples);
  Jitter other = jitter;
  other.seed = 6;
  ASSERT_OK_AND_ASSIGN(const SampledStep c, SampleSteps(plan, {}, other));
  EXPECT_NE(a.samples, c.samples);
  EXPECT_LE(a.least, a.p50);
  EXPECT_LE(a.p50, a.p90);
  EXPECT_LE(a.p90, a.p99);
  EXPECT_LE(a.p99, a.most);
  std::vector<Duration> sorted = a.samples;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(a.p50, sorted[99]);
  EXPECT_EQ(a.p90, sorted[179]);
  EXPECT_EQ(a.p99, sorted[197]);
  // Waiting for the slowest makes a jittered pipeline slower on average.
  ASSERT_OK_AND_ASSIGN(const StepTrace calm, EmulateStep(plan));
  EXPECT_GT(a.mean, calm.step_time());
  EXPECT_LT(a.mean, calm.step_time() * 13 / 10);
  // One sample is a plan with just these durations.
  ASSERT_OK_AND_ASSIGN(
      const SampledStep none,
      SampleSteps(plan, {}, {.compute = 0, .links = 0, .samples = 3}));
  for (const Duration d : none.samples) EXPECT_EQ(d, calm.step_time());
  EXPECT_THAT(SampleSteps(plan, {}, {.compute = 1.5}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("jitter.compute is 1.5")));
  EXPECT_THAT(SampleSteps(plan, {}, {.samples = 0}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("jitter.samples is 0")));
}

TEST(SampleSteps, DrawsHaveTheMeanAndDeviationAskedFor) {
  constexpr double kOne = 1 << 20;
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 100'000;
  for (int k = 0; k < kDraws; ++k) {
    const double factor =
        static_cast<double>(JitterFactor(0.2, 3, k % 100, k / 100)) / kOne;
    sum += factor;
    squares += (factor - 1) * (factor - 1);
    EXPECT_GT(factor, 1 - 3.5 * 0.2);
    EXPECT_LT(factor, 1 + 3.5 * 0.2);
  }
  EXPECT_NEAR(sum / kDraws, 1, 0.003);
  EXPECT_NEAR(squares / kDraws, 0.04, 0.001);
  EXPECT_EQ(JitterFactor(0, 3, 1, 1), 1 << 20);
}

TEST(EmulateCluster, PassesLoseAShareOfTheReductionsThatTheyHide) {
  const ExecutionPlan plan = OneFOneB(8);
  const auto updates = UpdatesOf(4, 40, 3, 0);
  const ClusterStep free = Emulate({&plan}, updates);
  Duration hidden = kZero;
  for (const ClusterStep::Rank& rank : free.ranks) {
    hidden =
        std::max(hidden, Microseconds(40) -
                             std::max(kZero, rank.reduced - rank.computed));
  }
  ASSERT_GT(hidden, kZero);
  EXPECT_EQ(Emulate({&plan}, updates, {.contention = 0.5}).finish,
            free.finish + hidden / 2);
  EXPECT_THAT(EmulateCluster(std::vector<const ExecutionPlan*>{&plan}, updates,
                             {.contention = 1.5}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("contention is 1.5; it must be in [0, 1]")));
}

TEST(EmulateCluster, ForwardsWaitForWeightsThatAreGatheredTooLate) {
  const ExecutionPlan plan = OneFOneB(8);
  IdVector<RankId, RankUpdate> updates = UpdatesOf(4, 0, 0, 5);
  const auto gathered = [&](double us) {
    for (RankUpdate& update : updates) update.gather = Microseconds(us);
    return Emulate({&plan}, updates, {.gather_in_forwards = true}).finish;
  };
  const ClusterStep shown = Emulate({&plan}, updates);
  const SimTime pipeline = shown.pipeline_finish[0];
  EXPECT_EQ(shown.finish, pipeline + Microseconds(5));
  EXPECT_EQ(gathered(0), pipeline);
  // The first rank begins at once: it waits for the first of its four buckets,
  // or for the last, which its forward needs three quarters later.
  EXPECT_EQ(gathered(300), pipeline + Microseconds(75));
  const Duration forward = plan.graph.task(TaskId(0)).duration;
  EXPECT_EQ(gathered(90'000),
            pipeline + Microseconds(90'000) - forward * 3 / 4);
  // The last rank begins later, by what the others take.
  for (const RankId r : updates.ids()) {
    if (r.value() < 3) updates[r].gather = kZero;
  }
  updates[RankId(3)].gather = Microseconds(1);
  EXPECT_EQ(Emulate({&plan}, updates, {.gather_in_forwards = true}).finish,
            pipeline);
}

}  // namespace
}  // namespace pipeloom::emulator
