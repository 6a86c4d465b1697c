#include "planner/passes/pass_forms.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "planner/bounds/plan_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/lower/lower_plan.h"
#include "planner/memory/stage_choices.h"
#include "planner/passes/drop_fused.h"
#include "planner/passes/pair_passes.h"
#include "planner/step/paired_search.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::PassForm;
using partition::StepMemory;
using testing::IsOk;

struct Problem {
  StageGraph graph{};  // Everything kept, all backwards split.
  StepMemory memory{};
};

// A step on tensor-parallel ranks with links slow enough for forms to matter.
Problem MakeProblem(uint64_t seed, int32_t microbatches = 4,
                    int32_t samples = 30) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  job.cluster.intra_node.bandwidth.bytes_per_second = 5e10;
  job.training.microbatches = microbatches;
  const BatchMetadata batch = testing::RandomBatch(seed, samples, 3);
  const emulator::StageCostModel costs(job);
  const Partition partition = *partition::SeparatedPartition(job, costs, batch);
  const Microbatches cut = *partition::SplitMicrobatches(
      job, *partition::PackStep(job, batch, 0), 0, partition);
  partition::BuiltGraph built = *partition::BuildStageGraph(
      costs, partition, cut, {.split_backward = true});
  StepMemory memory = partition::MakeStepMemory(
      costs, partition, cut, built.pairs, StageChoices(costs, partition, cut));
  return {.graph = std::move(built.graph), .memory = std::move(memory)};
}

MemorySelection RandomSelection(const StepMemory& memory, Random* random) {
  MemorySelection selection = memory.KeepEverything();
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    selection[id] =
        static_cast<int32_t>(random->Below(memory.candidates(id).size()));
  }
  return selection;
}

// A legal order under limits that are just enough for it.
struct Limited {
  StageGraph graph{};
  RankOrders orders{};
};
Limited ListScheduled(const StageGraph& graph) {
  const FlatGraph flat(graph);
  ListScheduler scheduler(flat);
  scheduler.Run({});
  Limited limited{.orders = OrdersOf(flat, scheduler.sequence())};
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  const Schedule schedule = *TimeSchedule(graph, limited.orders);
  for (const RankId r : ranks.ids()) ranks[r].memory.limit = schedule.peak[r];
  limited.graph = graph.WithRanks(ranks);
  return limited;
}

TEST(PassForms, TheFormChosenIsNeverSlowerAndKeepsTheMemoryOfTheOrder) {
  int64_t improved = 0;
  int64_t mixed = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Problem problem = MakeProblem(seed);
    ASSERT_TRUE(HasFormChoice(problem.memory));
    Random random(seed);
    SetForms(seed % 2 == 0 ? PassForm::kSplit : PassForm::kFused,
             &problem.memory);
    const MemorySelection selection = RandomSelection(problem.memory, &random);
    const StageGraph before =
        *partition::ApplyMemory(problem.graph, problem.memory, selection);
    Limited limited = ListScheduled(before);
    const int64_t was =
        TimeSchedule(before, limited.orders)->step_time().count();
    StepMemory chosen = problem.memory;
    PassFormChooser chooser(before.WithRanks(limited.graph.ranks()),
                            problem.memory);
    const int64_t time = chooser.Choose(selection, &chosen, &limited.orders);
    EXPECT_LE(time, was);
    improved += time < was;
    const StageGraph after =
        partition::ApplyMemory(problem.graph, chosen, selection)
            ->WithRanks(limited.graph.ranks());
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(after, limited.orders));
    EXPECT_EQ(schedule.step_time().count(), time);
    EXPECT_THAT(ValidateSchedule(after, schedule), IsOk());
    int fused = 0;
    int split = 0;
    for (const StagePairId id : chosen.pairs.ids()) {
      if (!chosen.has_other_form(id)) continue;
      ++(chosen.form(id) == PassForm::kFused ? fused : split);
    }
    mixed += fused > 0 && split > 0;
    // A plan has weight-gradient tasks of split pairs only.
    ASSERT_OK_AND_ASSIGN(const PlanProblem plan,
                         DropFusedWeightGrads(after, chosen, schedule));
    EXPECT_EQ(plan.graph.num_tasks(), after.num_tasks() - fused);
    EXPECT_THAT(ValidateSchedule(plan.graph, plan.schedule), IsOk());
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan lowered,
                         LowerPlan(plan.graph, plan.schedule));
  }
  EXPECT_GT(improved, 20);
  EXPECT_GT(mixed, 20);
}

// Without time nothing is tried; with the time of one question, little.
TEST(PassFormChooser, StopsWhenTheTimeIsOver) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Problem problem = MakeProblem(seed);
    const MemorySelection selection = problem.memory.KeepEverything();
    const StageGraph graph =
        *partition::ApplyMemory(problem.graph, problem.memory, selection);
    Limited limited = ListScheduled(graph);
    const StageGraph within = graph.WithRanks(limited.graph.ranks());
    const int64_t was =
        TimeSchedule(within, limited.orders)->step_time().count();
    for (const int allowed : {0, 1}) {
      int asked = 0;
      const auto expired = [&] { return asked++ >= allowed; };
      StepMemory memory = problem.memory;
      RankOrders orders = limited.orders;
      PassFormChooser chooser(within, memory);
      EXPECT_LE(
          chooser.Choose(selection, &memory, &orders, {.expired = expired}),
          was);
      EXPECT_LE(chooser.batches(), allowed);
    }
    int asked = 0;
    const PairedOrders none =
        PairPasses(within, problem.memory, selection, limited.orders, [&] {
          ++asked;
          return true;
        });
    EXPECT_EQ(asked, 1);
    EXPECT_LE(none.step_time, was);
    EXPECT_LE(none.timings, 2);
  }
}

// Both gradients of a pass take less time at once than one after the other, so
// a bound must not count the two of a step whose backwards are split.
TEST(PassForms, BoundsOfHugeStepsHoldForWholeBackwards) {
  Problem problem = MakeProblem(1, /*microbatches=*/950, /*samples=*/7500);
  ASSERT_GT(problem.graph.num_tasks(), 20'000);
  const int64_t bound = PlanBound(problem.graph, &problem.memory).time;
  SetForms(PassForm::kFused, &problem.memory);
  ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                       partition::ApplyMemory(problem.graph, problem.memory,
                                              problem.memory.KeepEverything()));
  const FlatGraph flat(graph);
  ListScheduler scheduler(flat);
  const int64_t time = scheduler.Run({});
  EXPECT_LE(bound, time);
  EXPECT_GE(bound, time * 4 / 5);
  EXPECT_LE(QuickPlanBound(problem.graph, problem.memory).time, bound);
}

// The gaps of a rank take no more than they are, each backward takes one weight
// gradient, whose input gradient was made before it, and the plan is legal.
TEST(PairPasses, PairsAreLegalNeverSlowerAndAboveTheBound) {
  int64_t paired = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Problem problem = MakeProblem(seed);
    const MemorySelection selection = problem.memory.KeepEverything();
    const StageGraph graph =
        *partition::ApplyMemory(problem.graph, problem.memory, selection);
    const Limited limited = ListScheduled(graph);
    const StageGraph& roomy = graph;
    const int64_t was =
        TimeSchedule(graph, limited.orders)->step_time().count();
    const PairedOrders found =
        PairPasses(seed % 2 == 0 ? roomy : limited.graph, problem.memory,
                   selection, limited.orders);
    EXPECT_LE(found.step_time, was);
    paired += !found.pairs.empty();
    ASSERT_OK_AND_ASSIGN(
        StageGraph with,
        ApplyPairs(seed % 2 == 0 ? roomy : limited.graph, found.pairs));
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(with, found.orders));
    EXPECT_EQ(schedule.step_time().count(), found.step_time);
    EXPECT_THAT(ValidateSchedule(with, schedule), IsOk());
    EXPECT_LE(PlanBound(problem.graph, &problem.memory).time, found.step_time);
    IdVector<TaskId, bool> used(with.num_tasks(), false);
    for (const PairedPass& pair : found.pairs) {
      EXPECT_FALSE(used[pair.backward]);
      used[pair.backward] = true;
      EXPECT_LT(pair.rest, graph.task(pair.weight_grad).duration);
    }
    // Limits of schedules know nothing of tensors on their way.
    ASSERT_OK_AND_ASSIGN(const StageGraph unlimited,
                         ApplyPairs(graph, found.pairs));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         LowerPlan(unlimited, schedule));
    EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
  }
  EXPECT_GT(paired, 40);
}

// Each weight gradient stays after its backward, and the other tasks stay where
// they were; one that directly followed it comes after a later backward. Orders
// that keep limits keep them.
TEST(PairPasses, WeightGradsArePutOffAsLongAsLimitsAllow) {
  int moved = 0;
  int within_limits = 0;
  int less = 0;  // Ranks that put off less under their limit.
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Problem problem = MakeProblem(seed);
    const MemorySelection selection = problem.memory.KeepEverything();
    const StageGraph graph =
        *partition::ApplyMemory(problem.graph, problem.memory, selection);
    const RankOrders orders = ListScheduled(graph).orders;
    const RankOrders put_off =
        PutOffWeightGrads(graph, problem.memory, selection, orders);
    const auto others = [&](const std::vector<TaskId>& order) {
      std::vector<TaskId> kept;
      for (const TaskId t : order) {
        if (graph.task(t).pass != Pass::kWeightGrad) kept.push_back(t);
      }
      return kept;
    };
    for (const RankId r : graph.rank_ids()) {
      EXPECT_EQ(others(put_off[r]), others(orders[r]));
      std::vector<TaskId> all = put_off[r];
      std::vector<TaskId> same = orders[r];
      std::sort(all.begin(), all.end());
      std::sort(same.begin(), same.end());
      EXPECT_EQ(all, same);
      moved += put_off[r] != orders[r];
    }
    Limited limited = ListScheduled(graph);
    const RankOrders within =
        PutOffWeightGrads(limited.graph, problem.memory, selection, orders);
    const Schedule held = *TimeSchedule(limited.graph, within);
    for (const RankId r : graph.rank_ids()) {
      EXPECT_LE(held.peak[r], limited.graph.rank(r).memory.limit);
      within_limits += within[r] != orders[r];
      less += within[r] != put_off[r];
    }
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimeSchedule(graph, put_off));
    EXPECT_GT(schedule.step_time(), kZero);
  }
  EXPECT_GT(moved, 20);
  EXPECT_GT(within_limits, 10);
  EXPECT_GT(less, 10);
}

// Whatever a search finds with the pairs as constraints is an order of the plan
// in which the same pairs hold, of the same time.
TEST(PairedSearch, OrdersOfTheConstrainedGraphAreOrdersOfThePlanWithItsPairs) {
  int improved = 0;
  int64_t hidden = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Problem problem = MakeProblem(seed);
    const MemorySelection selection = problem.memory.KeepEverything();
    const StageGraph graph =
        *partition::ApplyMemory(problem.graph, problem.memory, selection);
    const Limited limited = ListScheduled(graph);
    const StageGraph& within = seed % 2 == 0 ? graph : limited.graph;
    const PairedOrders found =
        PairPasses(within, problem.memory, selection, limited.orders);
    if (found.pairs.empty()) continue;
    ASSERT_OK_AND_ASSIGN(const ConstrainedGraph constrained,
                         ConstrainByPairs(within, problem.memory, found.pairs));
    // Weight gradients of which no time is left are no tasks of their own.
    const auto whole =
        std::count_if(found.pairs.begin(), found.pairs.end(),
                      [](const auto& pair) { return pair.rest == kZero; });
    EXPECT_EQ(constrained.graph.num_tasks(),
              within.num_tasks() - static_cast<int32_t>(whole));
    hidden += whole;
    const RankOrders start = ToConstrained(found.orders, constrained);
    EXPECT_LE(TimeSchedule(constrained.graph, start)->step_time().count(),
              found.step_time);
    ASSERT_OK_AND_ASSIGN(
        SearchResult searched,
        SearchGraph(constrained.graph, seed, {.max_evaluations = 200}, start));
    EXPECT_LE(searched.schedule.step_time().count(), found.step_time);
    improved += searched.schedule.step_time().count() < found.step_time;
    RankOrders orders = FromConstrained(searched.schedule.order, constrained);
    ASSERT_OK_AND_ASSIGN(const StageGraph paired,
                         ApplyPairs(within, found.pairs));
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(paired, std::move(orders)));
    EXPECT_THAT(ValidateSchedule(paired, schedule), IsOk());
    EXPECT_EQ(schedule.step_time(), searched.schedule.step_time());
    ASSERT_OK_AND_ASSIGN(const StageGraph unlimited,
                         ApplyPairs(graph, found.pairs));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         LowerPlan(unlimited, schedule));
    EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
  }
  EXPECT_GT(improved, 20);
  EXPECT_GT(hidden, 40);
}

TEST(PairedSearch, PairsThatLeaveNoOrderAreRefused) {
  const Problem problem = MakeProblem(1);
  // Two backwards of a rank, each with the other's weight gradient in its gap.
  std::vector<partition::StagePair> two;
  for (const partition::StagePair& pair : problem.memory.pairs) {
    if (pair.weight_grad.is_none()) continue;
    if (two.empty() || (two.size() == 1 && pair.stage == two[0].stage)) {
      two.push_back(pair);
    }
  }
  ASSERT_EQ(two.size(), 2u);
  const auto refused = ConstrainByPairs(
      problem.graph, problem.memory,
      {{.weight_grad = two[0].weight_grad, .backward = two[1].backward},
       {.weight_grad = two[1].weight_grad, .backward = two[0].backward}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pipeloom::planner
