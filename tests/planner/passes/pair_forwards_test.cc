#include "planner/passes/pair_forwards.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/pass_pairs.h"
#include "ir/text/text_format.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "planner/bounds/plan_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/lower/lower_plan.h"
#include "planner/memory/stage_choices.h"
#include "planner/passes/pass_forms.h"
#include "planner/search/search_graph.h"
#include "planner/step/paired_search.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::PassForm;
using partition::StepMemory;
using ::pipeloom::testing::IsOk;

// A job whose tensor-parallel collectives take a third of its passes.
JobSpec WaitingJob() {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  job.cluster.num_nodes = 2;
  job.cluster.intra_node.bandwidth.bytes_per_second = 5e10;
  job.setup.paired_forwards = true;
  return job;
}

struct Problem {
  StageGraph graph{};  // Everything kept.
  StepMemory memory{};
};

Problem MakeProblem(uint64_t seed, PassForm form) {
  JobSpec job = WaitingJob();
  job.training.microbatches = 6;
  const BatchMetadata batch = testing::RandomBatch(seed, 40, 3);
  const emulator::StageCostModel costs(job);
  const Partition partition = *partition::SeparatedPartition(job, costs, batch);
  const Microbatches cut = *partition::SplitMicrobatches(
      job, *partition::PackStep(job, batch, 0), 0, partition);
  partition::BuiltGraph built = *partition::BuildStageGraph(
      costs, partition, cut, {.split_backward = true});
  Problem problem{
      .memory = partition::MakeStepMemory(costs, partition, cut, built.pairs,
                                          StageChoices(costs, partition, cut))};
  SetForms(form, &problem.memory);
  problem.graph = *partition::ApplyMemory(built.graph, problem.memory,
                                          problem.memory.KeepEverything());
  return problem;
}

RankOrders ListScheduled(const StageGraph& graph) {
  const FlatGraph flat(graph);
  ListScheduler scheduler(flat);
  scheduler.Run({});
  return OrdersOf(flat, scheduler.sequence());
}

// Returns the graph with limits of `percent` of the peaks of the orders.
StageGraph Limited(const StageGraph& graph, const RankOrders& orders,
                   int64_t percent) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  const Schedule schedule = *TimeSchedule(graph, orders);
  for (const RankId r : ranks.ids()) {
    ranks[r].memory.limit = Bytes(schedule.peak[r].count() * percent / 100);
  }
  return graph.WithRanks(ranks);
}

TEST(PairForwards, PairsAreLegalShorterWithinLimitsAndAboveTheBound) {
  int paired = 0;
  int paired_within_limits = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Problem problem =
        MakeProblem(seed, seed % 2 == 0 ? PassForm::kSplit : PassForm::kFused);
    const MemorySelection selection = problem.memory.KeepEverything();
    const RankOrders orders = ListScheduled(problem.graph);
    const bool limited = seed % 4 >= 2;
    const StageGraph graph =
        limited ? Limited(problem.graph, orders, 120) : problem.graph;
    const Duration was = TimeSchedule(graph, orders)->step_time();
    ASSERT_OK_AND_ASSIGN(
        const ForwardPairedOrders found,
        PairForwards(graph, problem.memory, selection, orders));
    if (found.pairs.empty()) {
      EXPECT_EQ(found.schedule.step_time(), was);
      continue;
    }
    ++(limited ? paired_within_limits : paired);
    EXPECT_LT(found.schedule.step_time(), was);
    EXPECT_GE(found.schedule.step_time().count(),
              BoundWithForwardPairs(graph, problem.memory).time);
    EXPECT_LE(BoundWithForwardPairs(graph, problem.memory).time,
              PlanBound(graph, &problem.memory).time);
    ASSERT_OK_AND_ASSIGN(const StageGraph with,
                         ApplyForwardPairs(graph, found.pairs));
    EXPECT_THAT(ValidateSchedule(with, found.schedule), IsOk());
    EXPECT_EQ(*TimeSchedule(with, found.schedule.order), found.schedule);
    for (const ForwardPair& pair : found.pairs) {
      const Task& a = graph.task(pair.first);
      const Task& b = graph.task(pair.second);
      EXPECT_NE(a.microbatch, b.microbatch);
      EXPECT_GE(pair.together, std::max(a.duration, b.duration));
      EXPECT_LT(pair.together, a.duration + b.duration);
    }
    // Limits of schedules know nothing of tensors on their way.
    ASSERT_OK_AND_ASSIGN(const StageGraph unlimited,
                         ApplyForwardPairs(problem.graph, found.pairs));
    ASSERT_OK_AND_ASSIGN(ExecutionPlan plan,
                         LowerPlan(unlimited, found.schedule));
    ASSERT_OK_AND_ASSIGN(const StepTrace trace, emulator::EmulateStep(plan));
    plan.predicted_step_time = trace.step_time();
    EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
    EXPECT_LE(trace.step_time(), found.schedule.step_time());
    EXPECT_EQ(*ParseExecutionPlan(ToString(plan)), plan);
  }
  EXPECT_GT(paired, 15);
  EXPECT_GT(paired_within_limits, 5);
}

// A pair holds what both passes hold when they start, and what they hand on.
TEST(PairForwards, ThePlanOfAPairHoldsWhatBothTakeAtOnce) {
  const Problem problem = MakeProblem(3, PassForm::kFused);
  ASSERT_OK_AND_ASSIGN(const ForwardPairedOrders found,
                       PairForwards(problem.graph, problem.memory,
                                    problem.memory.KeepEverything(),
                                    ListScheduled(problem.graph)));
  ASSERT_FALSE(found.pairs.empty());
  ASSERT_OK_AND_ASSIGN(const StageGraph with,
                       ApplyForwardPairs(problem.graph, found.pairs));
  for (const ForwardPair& pair : found.pairs) {
    const Task& a = problem.graph.task(pair.first);
    const Task& b = problem.graph.task(pair.second);
    const Bytes both = b.alloc + BoundaryOf(problem.graph, pair.second).made;
    EXPECT_EQ(with.task(pair.first).alloc, a.alloc + both);
    EXPECT_EQ(with.task(pair.first).free, a.free + both);
    EXPECT_EQ(with.task(pair.second).alloc, b.alloc);
    EXPECT_EQ(with.task(pair.second).free, b.free);
  }
}

TEST(PairForwards, WithoutTimeOrGapsThereAreNoPairs) {
  const Problem problem = MakeProblem(1, PassForm::kFused);
  const MemorySelection selection = problem.memory.KeepEverything();
  const RankOrders orders = ListScheduled(problem.graph);
  ASSERT_OK_AND_ASSIGN(const ForwardPairedOrders none,
                       PairForwards(problem.graph, problem.memory, selection,
                                    orders, [] { return true; }));
  EXPECT_TRUE(none.pairs.empty());
  EXPECT_EQ(none.schedule.order, orders);
  StepMemory without = problem.memory;
  for (auto& list : without.lists.Change()) {
    for (partition::MemoryCandidate& candidate : list) {
      candidate.effect.gap = kZero;
      candidate.effect.forward_gap = kZero;
    }
  }
  ASSERT_OK_AND_ASSIGN(const ForwardPairedOrders no_gaps,
                       PairForwards(problem.graph, without, selection, orders));
  EXPECT_TRUE(no_gaps.pairs.empty());
}

// Whatever a search finds for the graph in which a pair is one task is an order
// of the plan with the same pairs and time.
TEST(PairForwards, OrdersOfTheConstrainedGraphAreOrdersOfThePlan) {
  int improved = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Problem problem = MakeProblem(seed, PassForm::kFused);
    const RankOrders orders = ListScheduled(problem.graph);
    const StageGraph graph =
        seed % 2 == 0 ? problem.graph : Limited(problem.graph, orders, 150);
    ASSERT_OK_AND_ASSIGN(const ForwardPairedOrders found,
                         PairForwards(graph, problem.memory,
                                      problem.memory.KeepEverything(), orders));
    ASSERT_FALSE(found.pairs.empty());
    ASSERT_OK_AND_ASSIGN(
        const ConstrainedGraph constrained,
        ConstrainByPairs(graph, problem.memory, {}, found.pairs));
    // Fused backwards have their weight gradients with them.
    const auto fused = std::count_if(
        problem.memory.pairs.begin(), problem.memory.pairs.end(),
        [](const auto& pair) { return !pair.weight_grad.is_none(); });
    EXPECT_EQ(
        constrained.graph.num_tasks(),
        graph.num_tasks() - static_cast<int32_t>(found.pairs.size() + fused));
    const RankOrders start = ToConstrained(found.schedule.order, constrained);
    EXPECT_EQ(TimeSchedule(constrained.graph, start)->step_time(),
              found.schedule.step_time());
    EXPECT_EQ(FromConstrained(start, constrained), found.schedule.order);
    ASSERT_OK_AND_ASSIGN(
        const SearchResult searched,
        SearchGraph(constrained.graph, seed, {.max_evaluations = 100}, start));
    improved += searched.schedule.step_time() < found.schedule.step_time();
    ASSERT_OK_AND_ASSIGN(const StageGraph with,
                         ApplyForwardPairs(graph, found.pairs));
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(with,
                     FromConstrained(searched.schedule.order, constrained)));
    EXPECT_THAT(ValidateSchedule(with, schedule), IsOk());
    EXPECT_EQ(schedule.step_time(), searched.schedule.step_time());
  }
  EXPECT_GT(improved, 3);
}

// Every strategy's plans are paired where the trainer can run pairs, and never
// longer for it; without the setting there are none.
TEST(PairForwards, EveryStrategyPairsWhereTheTrainerCan) {
  const BatchMetadata batch = testing::RandomBatch(2, 400, 0);
  JobSpec job = WaitingJob();
  job.cluster.intra_node.bandwidth.bytes_per_second = 2e10;
  job.training.microbatches = 24;
  for (const char* strategy :
       {"1f1b", "interleaved", "zb-v", "dualpipe-v", "megatron", "pipeloom"}) {
    SCOPED_TRACE(strategy);
    job.setup.paired_forwards = true;
    ASSERT_OK_AND_ASSIGN(
        const PlanResult with,
        testing::PlanFirstStep(job, batch, {.schedule = strategy}));
    job.setup.paired_forwards = false;
    ASSERT_OK_AND_ASSIGN(
        const PlanResult without,
        testing::PlanFirstStep(job, batch, {.schedule = strategy}));
    EXPECT_TRUE(SecondsOfPairs(without.plan.graph).empty());
    EXPECT_FALSE(SecondsOfPairs(with.plan.graph).empty());
    EXPECT_LT(with.predicted.step_time(), without.predicted.step_time());
    EXPECT_GE(with.predicted.step_time(), with.lower_bound);
    EXPECT_THAT(ValidateExecutionPlan(with.plan), IsOk());
  }
}

}  // namespace
}  // namespace pipeloom::planner
