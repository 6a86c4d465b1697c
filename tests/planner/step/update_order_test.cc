// Step times see when a plan's order makes gradients ready for their reduction.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "emulator/cluster/emulate_cluster.h"
#include "planner/refine/fuse_last.h"
#include "planner/step/plan_step.h"
#include "tests/planner/shipped_files.h"
#include "tests/planner/small_step.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::FormSelection;
using partition::PassForm;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::MakeSmallStep;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;
using ::pipeloom::testing::SmallStep;
using ::pipeloom::testing::SmallVlmJob;

// Two replicas on a link on which a reduction takes about as long as a
// backward.
JobSpec JobWithLongReductions(int32_t microbatches, double contention) {
  JobSpec job = SmallVlmJob();
  job.parallel.dp = 2;
  job.training.microbatches = microbatches;
  job.setup.update_contention = contention;
  job.cluster.intra_node.bandwidth.bytes_per_second = 2e10;
  return job;
}

class UpdateOrderTest : public ::testing::TestWithParam<std::string> {};

TEST_P(UpdateOrderTest, StepsTakeWhatTheEmulationOfTheirUpdatesTakes) {
  for (const auto& [microbatches, contention] :
       {std::pair(2, 0.0), std::pair(4, 0.5), std::pair(8, 0.5)}) {
    SCOPED_TRACE(microbatches);
    ASSERT_OK_AND_ASSIGN(
        const PlanResult result,
        PlanFirstStep(JobWithLongReductions(microbatches, contention),
                      RandomBatch(3, 200, 4), {.schedule = GetParam()}));
    const emulator::StepUpdate& update = *result.update;
    ASSERT_TRUE(update.overlaps);
    ASSERT_OK_AND_ASSIGN(const emulator::ClusterResult cluster,
                         emulator::EmulateCluster({&result.plan}, update.ranks,
                                                  {.gather_in_forwards = true,
                                                   .contention = contention,
                                                   .clip_gradients = true}));
    // Optimizers are emulated each for itself, and first forwards when they
    // come in this order.
    Duration optimizer = kZero;
    Duration wait = kZero;
    for (const RankId r : update.ranks.ids()) {
      ASSERT_GT(update.ranks[r].reduce, kZero);
      optimizer = std::max(optimizer, update.ranks[r].optimizer);
      wait = std::max(wait, update.waits[r]);
    }
    const Duration step = result.predicted.step_time();
    const Duration rounding(2);
    EXPECT_GE(step, cluster.step.step_time() - rounding);
    EXPECT_LE(step, cluster.step.step_time() + wait + optimizer);
    EXPECT_LE(result.lower_bound, step);
    for (const RankId r : update.ranks.ids()) {
      EXPECT_LE(update.least[r], result.plan.graph.rank(r).epilogue);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, UpdateOrderTest,
                         ::testing::Values("1f1b", "interleaved", "zb-h1",
                                           "zb-v", "dualpipe-v", "megatron",
                                           "dip", "pipeloom"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A rank alone: nothing waits for its input gradients, so that a weight
// gradient apart from its backward is worth what its collectives hide, and its
// reduction is longer than that.
TEST(UpdateOrder, ALastBackwardStaysWholeWhereItsReductionIsLong) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob("llama3-8b"));
  job.parallel.tp = 8;
  job.parallel.pp = 1;
  job.parallel.dp = 4;
  job.training.microbatches = 2;
  job.training.memory_limit = Bytes(1000 * kGibibyte.count());
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch, ShippedBatch("text.jsonl"));
  ASSERT_OK_AND_ASSIGN(
      const PlanResult whole,
      PlanFirstStep(job, batch, {.schedule = "1f1b", .evaluations = 1}));
  ASSERT_OK_AND_ASSIGN(const PlanResult split,
                       PlanFirstStep(job, batch, {.schedule = "zb-h1"}));
  EXPECT_LE(split.predicted.step_time(), whole.predicted.step_time());
  // The last gradients come from a whole backward.
  TaskId last;
  for (const Span& span : split.predicted.spans) {
    if (span.kind == SpanKind::kTask) last = span.task;
  }
  EXPECT_EQ(split.plan.graph.task(last).pass, Pass::kBackward);
}

TEST(FuseLast, LastPassesOfARankBecomeWholeAndTheOthersStay) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    const SmallStep step = MakeSmallStep(seed, 4, true, /*waits=*/true);
    const StageGraph graph = testing::WithRoom(step.graph, 0);
    partition::StepMemory split = step.memory;
    MemorySchedule made{.selection = step.memory.KeepEverything()};
    made.forms = FormSelection(split.pairs.size(), PassForm::kSplit);
    split.SetForms(made.forms);
    ASSERT_OK_AND_ASSIGN(const StageGraph with_forms,
                         partition::ApplyMemory(graph, split, made.selection));
    // Weight gradients of each rank last, in their own order.
    RankOrders orders(graph.num_ranks());
    for (const bool is_weight_grad : {false, true}) {
      for (const TaskId t : graph.task_ids()) {
        const Task& task = graph.task(t);
        if ((task.pass == Pass::kWeightGrad) == is_weight_grad) {
          orders[task.rank].push_back(t);
        }
      }
    }
    ASSERT_OK_AND_ASSIGN(made.found.schedule, TimeSchedule(with_forms, orders));
    const RankId rank(static_cast<int32_t>(seed % 4));
    ASSERT_OK_AND_ASSIGN(
        const std::optional<MemorySchedule> fused,
        FuseOnRank(graph, split, made, rank, FusedPasses::kLast));
    ASSERT_TRUE(fused.has_value());
    std::vector<StageId> stages;
    for (const StagePairId id : split.pairs.ids()) {
      const partition::StagePair& pair = split.pairs[id];
      if (fused->forms[id] == made.forms[id]) continue;
      EXPECT_EQ(graph.task(pair.backward).rank, rank);
      EXPECT_EQ(std::count(stages.begin(), stages.end(), pair.stage), 0);
      stages.push_back(pair.stage);
      const auto& order = fused->found.schedule.order[rank];
      const auto at = std::find(order.begin(), order.end(), pair.backward);
      ASSERT_NE(at + 1, order.end());
      EXPECT_EQ(*(at + 1), pair.weight_grad);
      // No other one of its stage came after it.
      const auto& before = orders[rank];
      EXPECT_TRUE(std::none_of(
          std::find(before.begin(), before.end(), pair.weight_grad) + 1,
          before.end(),
          [&](TaskId t) { return graph.task(t).stage == pair.stage; }));
    }
    EXPECT_FALSE(stages.empty());
    for (const RankId r : orders.ids()) {
      if (r == rank) continue;
      EXPECT_EQ(fused->found.schedule.order[r], orders[r]);
    }
    // A rank has more of them.
    ASSERT_OK_AND_ASSIGN(const auto all, FuseOnRank(graph, split, *fused, rank,
                                                    FusedPasses::kAll));
    ASSERT_TRUE(all.has_value());
    for (const StagePairId id : split.pairs.ids()) {
      const TaskId backward = split.pairs[id].backward;
      if (backward.is_none() || !split.has_other_form(id)) continue;
      EXPECT_EQ(all->forms[id] == PassForm::kFused,
                graph.task(backward).rank == rank);
    }
    // Then there is nothing left to fuse.
    ASSERT_OK_AND_ASSIGN(const auto again, FuseOnRank(graph, split, *all, rank,
                                                      FusedPasses::kAll));
    EXPECT_FALSE(again.has_value());
  }
}

}  // namespace
}  // namespace pipeloom::planner
