#include "emulator/step/replay_step.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::RandomGraph;
using testing::RandomOrders;

StepOutcome Whole(const ExecutionPlan& plan, const EmulateOptions& options,
                  absl::Status* status) {
  const auto trace = EmulateStep(plan, options);
  *status = trace.status();
  StepOutcome outcome;
  if (!trace.ok()) return outcome;
  outcome.finish = trace->finish;
  for (const MemoryPeak& peak : MemoryPeaks(*trace)) {
    outcome.peaks.push_back({peak.total, peak.at});
  }
  return outcome;
}

ExecutionPlan WithTaskTime(const ExecutionPlan& plan, TaskId task,
                           Duration duration) {
  ExecutionPlan changed = plan;
  IdVector<TaskId, Task> tasks = plan.graph.tasks();
  tasks[task].duration = duration;
  auto graph =
      StageGraph::Create(plan.graph.name(), plan.graph.ranks(),
                         plan.graph.module_names(), tasks, plan.graph.edges());
  EXPECT_THAT(graph, IsOk());
  changed.graph = *graph;
  return changed;
}

// A long pipeline of unequal tasks, or a small odd one.
ExecutionPlan SomePlan(uint64_t seed) {
  Random random(seed);
  if (seed % 2 == 0) {
    const StageGraph graph = RandomGraph(
        seed, {.max_ranks = 5, .max_microbatches = 6, .with_epilogues = true});
    return LowerNaively(graph, RandomOrders(graph, random));
  }
  const StageGraph uniform =
      testing::UniformGraph({.ranks = 2 + static_cast<int32_t>(random.Below(4)),
                             .microbatches = 12,
                             .weight_grad = kZero,
                             .delay = Microseconds(20)});
  IdVector<TaskId, Task> tasks = uniform.tasks();
  if (seed % 4 == 1) {
    for (Task& task : tasks) {
      task.duration = Nanoseconds(random.Between(500'000, 1'500'000));
    }
  }
  auto graph = StageGraph::Create("g", uniform.ranks(), uniform.module_names(),
                                  tasks, uniform.edges());
  EXPECT_THAT(graph, IsOk());
  return LowerNaively(*graph, OneFOneBOrders(*graph));
}

std::vector<EmulateOptions> SomeOptions() {
  std::vector<EmulateOptions> all;
  for (const LinkSharing sharing :
       {LinkSharing::kNone, LinkSharing::kPerPair, LinkSharing::kPerRank,
        LinkSharing::kFairNic}) {
    for (const bool blocking : {false, true}) {
      EmulateOptions options;
      options.sharing = sharing;
      options.blocking_sends = blocking;
      all.push_back(options);
    }
  }
  return all;
}

TEST(ReplayStep, AChangedDurationGivesWhatAWholeEmulationGives) {
  ReplayCounters sum;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const ExecutionPlan plan = SomePlan(seed);
    for (const EmulateOptions& options : SomeOptions()) {
      absl::Status status;
      const StepOutcome base = Whole(plan, options, &status);
      const auto made = ReplayStep::Create(plan, options);
      ASSERT_EQ(made.ok(), status.ok()) << "seed " << seed;
      if (!made.ok()) continue;
      ReplayStep& replay = **made;
      EXPECT_EQ(replay.base(), base) << "seed " << seed;
      Random random(seed + 77);
      for (int change = 0; change < 6; ++change) {
        const TaskId task(
            static_cast<int32_t>(random.Below(plan.graph.num_tasks())));
        const Duration duration =
            plan.graph.task(task).duration * random.Below(30) / 10;
        const StepOutcome expected =
            Whole(WithTaskTime(plan, task, duration), options, &status);
        ASSERT_OK_AND_ASSIGN(const StepOutcome outcome,
                             replay.WithDuration(task, duration));
        ASSERT_EQ(outcome, expected)
            << "seed " << seed << " change " << change << " sharing "
            << static_cast<int>(options.sharing);
      }
      EXPECT_EQ(replay.base(), base);
      sum.rejoined += replay.counters().rejoined;
      sum.prefix_hits += replay.counters().prefix_hits;
    }
  }
  // The short cuts were taken.
  EXPECT_GT(sum.rejoined, 300);
  EXPECT_GT(sum.prefix_hits, 10'000);
}

TEST(ReplayStep, AChangedOrderGivesWhatAWholeEmulationGives) {
  int compared = 0;
  int deadlocks = 0;
  int64_t rejoined = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const ExecutionPlan plan = SomePlan(seed);
    for (const EmulateOptions& options : SomeOptions()) {
      const auto made = ReplayStep::Create(plan, options);
      if (!made.ok()) continue;
      Random random(seed + 99);
      for (int change = 0; change < 8; ++change) {
        const RankId rank(
            static_cast<int32_t>(random.Below(plan.graph.num_ranks())));
        const std::vector<Instruction>& program = plan.programs[rank];
        const auto size = static_cast<int64_t>(program.size());
        // Moves one instruction, or rotates a few.
        const int64_t first = random.Below(size);
        const int64_t count =
            1 + random.Below(std::min<int64_t>(size - first, 9));
        std::vector<Instruction> slice(program.begin() + first,
                                       program.begin() + first + count);
        std::rotate(slice.begin(), slice.begin() + random.Below(count),
                    slice.end());
        ExecutionPlan changed = plan;
        std::copy(slice.begin(), slice.end(),
                  changed.programs[rank].begin() + first);
        absl::Status status;
        const StepOutcome expected = Whole(changed, options, &status);
        const auto outcome =
            (*made)->WithOrder(rank, static_cast<int32_t>(first), slice);
        if (absl::IsInvalidArgument(outcome.status())) continue;
        ASSERT_EQ(outcome.ok(), status.ok())
            << "seed " << seed << " change " << change << outcome.status();
        if (!outcome.ok()) {
          EXPECT_TRUE(absl::IsFailedPrecondition(outcome.status()));
          ++deadlocks;
          continue;
        }
        ++compared;
        ASSERT_EQ(*outcome, expected)
            << "seed " << seed << " change " << change << " sharing "
            << static_cast<int>(options.sharing);
      }
      rejoined += (*made)->counters().rejoined;
    }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(deadlocks, 10);
  EXPECT_GT(rejoined, 300);
}

TEST(ReplayStep, KeptChangesAddUp) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ExecutionPlan plan = SomePlan(seed);
    const auto made = ReplayStep::Create(plan, {});
    if (!made.ok()) continue;
    Random random(seed);
    for (int k = 0; k < 6; ++k) {
      const TaskId task(
          static_cast<int32_t>(random.Below(plan.graph.num_tasks())));
      const Duration duration = Microseconds(random.Unit() * 2000);
      plan = WithTaskTime(plan, task, duration);
      ASSERT_THAT((*made)->KeepDuration(task, duration), IsOk());
      const RankId rank = plan.graph.task(task).rank;
      std::vector<Instruction>& program = plan.programs[rank];
      const auto first = static_cast<int32_t>(
          random.Below(static_cast<int64_t>(program.size()) - 1));
      const std::vector<Instruction> swapped = {
          program[static_cast<size_t>(first) + 1],
          program[static_cast<size_t>(first)]};
      if ((*made)->KeepOrder(rank, first, swapped).ok()) {
        std::copy(swapped.begin(), swapped.end(), program.begin() + first);
      }
      absl::Status status;
      const StepOutcome expected = Whole(plan, {}, &status);
      ASSERT_THAT(status, IsOk());
      ASSERT_EQ((*made)->base(), expected) << "seed " << seed << " k " << k;
    }
  }
}

TEST(ReplayStep, WithoutReuseItCountsWholeEmulationsOnly) {
  const ExecutionPlan plan = SomePlan(1);
  ASSERT_OK_AND_ASSIGN(const auto on, ReplayStep::Create(plan));
  ASSERT_OK_AND_ASSIGN(const auto off, ReplayStep::Create(plan, {}, false));
  EXPECT_EQ(on->base(), off->base());
  for (const TaskId t : plan.graph.task_ids()) {
    ASSERT_OK_AND_ASSIGN(const StepOutcome a,
                         on->WithDuration(t, Microseconds(1700)));
    ASSERT_OK_AND_ASSIGN(const StepOutcome b,
                         off->WithDuration(t, Microseconds(1700)));
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(off->counters().hit_ratio(), 0);
  EXPECT_EQ(off->counters().whole, off->counters().changes + 1);
  EXPECT_GT(on->counters().hit_ratio(), 0.5);
}

TEST(ReplayStep, WhatIsNoChangeOfOrderIsRefused) {
  const ExecutionPlan plan = SomePlan(1);
  ASSERT_OK_AND_ASSIGN(const auto replay, ReplayStep::Create(plan));
  const RankId rank(0);
  EXPECT_THAT(replay->WithOrder(rank, 0, {plan.programs[rank][1]}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("is not among its instructions 0 to 1")));
  EXPECT_THAT(replay->WithOrder(RankId(9), 0, {}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("rank 9 does not exist")));
  EXPECT_THAT(replay->WithOrder(rank, -1, {}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("instructions -1 to -1")));
  EXPECT_THAT(replay->WithDuration(TaskId(-1), kZero),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("task -1 does not exist")));
  EXPECT_THAT(replay->WithDuration(TaskId(0), Nanoseconds(-1)),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("duration is -1 ns")));
}

}  // namespace
}  // namespace pipeloom::emulator
