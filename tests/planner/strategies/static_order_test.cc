#include "planner/strategies/static_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "partition/graph/build_stage_graph.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::ElementsAre;

class StaticOrderTest : public ::testing::Test {
 protected:
  absl::StatusOr<PreparedJob> Prepared(const BatchMetadata& batch) {
    return PrepareJob(*pipeloom_, costs_, batch);
  }
  static PlanInput Input(const partition::PackedStep& packed) {
    PlanInput input;
    input.packed = &packed;
    input.budget.max_evaluations = 60;
    return input;
  }

  const JobSpec job_ = SmallVlmJob();
  const emulator::StageCostModel costs_{job_};
  const std::unique_ptr<Strategy> pipeloom_ = *MakeStrategy("pipeloom");
};

TEST_F(StaticOrderTest, ReplaysTheTypicalStepAsItWasPlanned) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const BatchMetadata batch = RandomBatch(seed, 200, 5);
    ASSERT_OK_AND_ASSIGN(const auto packed,
                         partition::PackStep(job_, batch, 0));
    ASSERT_OK_AND_ASSIGN(const PreparedJob job, Prepared(batch));
    ASSERT_OK_AND_ASSIGN(const PlanResult plan, PlanStep(job, Input(packed)));
    const StaticOrder order(plan.plan.graph, plan.predicted);
    EXPECT_EQ(order.For(plan.plan.graph), TaskOrders(plan.predicted)) << seed;
  }
}

// A whole backward says where its weight gradient runs in a step in which it is
// apart: behind it, not with the nearest one that was apart.
TEST(StaticOrderOfPasses, WeightGradientsFollowWholeBackwards) {
  // One rank, two microbatches; `apart`: whose weight gradients are.
  const auto graph_of = [](const std::vector<bool>& apart) {
    IdVector<TaskId, Task> tasks;
    IdVector<EdgeId, Dependency> edges;
    const auto add = [&](Pass pass, size_t microbatch, TaskId after) {
      const TaskId id = tasks.push_back(
          {.rank = RankId(0),
           .pass = pass,
           .module = ModuleId(0),
           .stage = StageId(0),
           .microbatch = MicrobatchId(static_cast<int32_t>(microbatch)),
           .duration = Microseconds(10)});
      if (!after.is_none()) edges.push_back({.from = after, .to = id});
      return id;
    };
    for (size_t m = 0; m < apart.size(); ++m) {
      const TaskId forward = add(Pass::kForward, m, TaskId());
      const TaskId backward = add(Pass::kBackward, m, forward);
      if (apart[m]) add(Pass::kWeightGrad, m, backward);
    }
    return *StageGraph::Create("one rank", {RankSpec{}}, {"model"},
                               std::move(tasks), std::move(edges));
  };
  const StageGraph typical = graph_of({false, true});
  StepTrace trace;
  SimTime now = kStepStart;
  for (const int32_t task : {0, 2, 1, 3, 4}) {  // F0 F1 B0 B1 W1
    trace.spans.push_back({.rank = RankId(0),
                           .task = TaskId(task),
                           .start = now,
                           .end = now + Microseconds(10)});
    now += Microseconds(10);
  }
  const StageGraph other = graph_of({true, true});
  const RankOrders orders = StaticOrder(typical, trace).For(other);
  EXPECT_THAT(orders[RankId(0)],
              ElementsAre(TaskId(0), TaskId(3), TaskId(1), TaskId(2), TaskId(4),
                          TaskId(5)));  // F0 F1 B0 W0 B1 W1
}

// Steps that have images where the typical one had none, the other way round,
// more sub-microbatches and more microbatches.
TEST_F(StaticOrderTest, HasALegalOrderForEveryOtherStep) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    BatchMetadata typical = RandomBatch(seed, 200, 5);
    ASSERT_OK_AND_ASSIGN(PreparedJob job, Prepared(typical));
    if (seed % 4 == 3) typical = RandomBatch(seed, 200, 0);
    ASSERT_OK_AND_ASSIGN(auto first, partition::PackStep(job_, typical, 0));
    if (seed % 3 == 2) first.packed[0].resize(2);
    ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStatic(job, Input(first)));
    job.strategy = strategy.get();
    for (const int32_t images : {0, 2, 12}) {
      const BatchMetadata batch = RandomBatch(100 + seed, 200, images);
      ASSERT_OK_AND_ASSIGN(const auto packed,
                           partition::PackStep(job_, batch, 0));
      ASSERT_OK_AND_ASSIGN(const PlanResult replayed,
                           PlanStep(job, Input(packed)));
      EXPECT_THAT(ValidateExecutionPlan(replayed.plan), IsOk());
      EXPECT_GE(replayed.predicted.step_time(), replayed.lower_bound);
      EXPECT_EQ(replayed.plan.schedule, "static");
    }
  }
}

}  // namespace
}  // namespace pipeloom::planner
