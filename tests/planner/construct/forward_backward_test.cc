#include "planner/construct/forward_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/retime.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;
using ::pipeloom::testing::UniformOptions;

TEST(ForwardBackwardTest, StaysLegalNeverWorsensAndReportsTrueTimes) {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_segments = 3;
  options.max_microbatches = 8;
  options.with_epilogues = true;
  int better = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    options.with_memory_limits = seed % 2 == 0;
    const StageGraph graph = RandomGraph(seed, options);
    const FlatGraph flat(graph);
    ForwardBackward improve(flat);
    if (!improve.can_run()) continue;
    ListScheduler scheduler(flat);
    const int64_t before = scheduler.Run({});
    const SweepStyle style{.patience = 0.5 * static_cast<double>(seed % 3),
                           .keeps_takers = seed % 4 < 2};
    const int64_t after = improve.Improve(scheduler.sequence(), 4, style);
    EXPECT_LE(after, before);
    if (after < before) ++better;
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(graph, OrdersOf(flat, improve.sequence())));
    EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
    EXPECT_EQ(schedule.step_time(), Nanoseconds(after));
    // Where tasks of no duration tie, keeping takers may have no answer.
    EXPECT_GE(improve.evaluations(), style.keeps_takers ? 1 : 2);
    EXPECT_LE(improve.evaluations(), 8);
  }
  EXPECT_GT(better, 100);
}

TEST(ForwardBackwardTest, StopsWhereItFallsFarBehindTheTimeToBeat) {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_microbatches = 12;
  int stopped = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FlatGraph flat(RandomGraph(seed, options));
    ForwardBackward improve(flat);
    if (!improve.can_run()) continue;
    ListScheduler scheduler(flat);
    const int64_t before = scheduler.Run({});
    const int64_t whole = improve.Improve(scheduler.sequence(), 8);
    const int64_t evaluations = improve.evaluations();
    const std::vector<int32_t> sequence(improve.sequence().begin(),
                                        improve.sequence().end());
    // An answer close to the time to beat is improved to the end.
    EXPECT_EQ(improve.Improve(scheduler.sequence(), 8, {}, before), whole);
    EXPECT_EQ(improve.evaluations(), evaluations);
    EXPECT_EQ(improve.sequence(), sequence);
    // One that stays far behind it ends after one round, and is not made worse.
    const int64_t behind =
        improve.Improve(scheduler.sequence(), 8, {}, whole / 2);
    EXPECT_GE(behind, whole);
    EXPECT_LE(behind, before);
    EXPECT_LE(improve.evaluations(), 2);
    EXPECT_EQ(Retimer(flat).Retime(improve.sequence()), behind);
    stopped += improve.evaluations() < evaluations ? 1 : 0;
  }
  EXPECT_GT(stopped, 20);
}

TEST(ForwardBackwardTest, NeverBeatsTheOptimum) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FlatGraph flat(*graph);
    ForwardBackward improve(flat);
    if (!improve.can_run()) continue;
    ListScheduler scheduler(flat);
    scheduler.Run({.prefer = Prefer::kForward});
    const auto optimum = BruteForceStepTime(*graph);
    ASSERT_TRUE(optimum.has_value());
    EXPECT_GE(improve.Improve(scheduler.sequence(), 4), optimum->count());
  }
}

TEST(ForwardBackwardTest, ReversedTwiceIsTheSameProblem) {
  RandomGraphOptions options;
  options.with_memory_limits = true;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const FlatGraph flat(RandomGraph(seed, options));
    const FlatGraph twice = Reversed(Reversed(flat));
    EXPECT_EQ(twice.pred, flat.pred);
    EXPECT_EQ(twice.succ_delay, flat.succ_delay);
    EXPECT_EQ(twice.alloc, flat.alloc);
    EXPECT_EQ(twice.capacity, flat.capacity);
    EXPECT_EQ(twice.pass, flat.pass);
    // A sequence takes as long backwards.
    ListScheduler scheduler(flat);
    scheduler.Run({});
    std::vector<int32_t> backwards(scheduler.sequence().rbegin(),
                                   scheduler.sequence().rend());
    const FlatGraph reversed = Reversed(flat);
    EXPECT_EQ(Retimer(reversed).Retime(backwards),
              Retimer(flat).Retime(scheduler.sequence()));
  }
}

// One microbatch as heavy as a third of the others together: list schedules
// find its place late.
TEST(ForwardBackwardTest, ShortensStepsWithOneDominantMicrobatch) {
  UniformOptions uniform;
  uniform.ranks = 4;
  uniform.chunks = 4;
  uniform.microbatches = 12;
  uniform.split_backward = true;
  const StageGraph alike = UniformGraph(uniform);
  int by_a_twentieth = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<int64_t> slower;
    for (int m = 0; m < uniform.microbatches; ++m) {
      slower.push_back(random.Between(1, 4));
    }
    slower[random.Below(uniform.microbatches)] = 12;
    IdVector<TaskId, Task> tasks = alike.tasks();
    for (Task& task : tasks) {
      task.duration =
          task.duration * slower[static_cast<size_t>(task.microbatch.value())];
    }
    auto graph =
        StageGraph::Create("dominant", alike.ranks(), alike.module_names(),
                           std::move(tasks), alike.edges());
    PIPELOOM_CHECK(graph.ok());
    const FlatGraph flat(*graph);
    ListScheduler scheduler(flat);
    const int64_t before = scheduler.Run({.prefer = Prefer::kPriority});
    ForwardBackward improve(flat);
    ASSERT_TRUE(improve.can_run());
    const int64_t after = improve.Improve(scheduler.sequence(), 4);
    EXPECT_LE(after, before);
    if (after < before * 95 / 100) ++by_a_twentieth;
  }
  EXPECT_GE(by_a_twentieth, 12);
}

}  // namespace
}  // namespace pipeloom::planner
