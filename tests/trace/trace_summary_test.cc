#include "trace/trace_summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_problem.h"
#include "tests/support/sample_step.h"

namespace pipeloom::trace {
namespace {

using ::pipeloom::testing::MakeSampleStep;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::SampleStep;

Duration Total(const ModuleTimes& times) {
  return times.pass[0] + times.pass[1] + times.pass[2];
}

TEST(SummarizeTest, PartsOfEveryRankAddUpToTheStep) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const SampleStep step =
        MakeSampleStep(RandomGraph(seed, {.with_epilogues = true}), seed);
    const StageGraph& graph = step.plan.graph;
    const TraceSummary summary = Summarize(graph, step.trace);
    Duration busy{};
    for (const RankSummary& rank : summary.ranks) {
      EXPECT_EQ(
          rank.busy() + rank.warm_up + rank.stalls + rank.drain + rank.epilogue,
          step.trace.step_time());
      busy += rank.busy();
    }
    Duration by_module{};
    for (const ModuleTimes& module : summary.modules) {
      by_module += Total(module);
    }
    EXPECT_EQ(by_module, busy);
    if (step.trace.step_time() > kZero) {
      EXPECT_NEAR(summary.bubble_ratio,
                  BubbleRatio(graph, step.trace.step_time()), 1e-12);
    }
  }
}

TEST(FindCriticalPathTest, ItsPartsAddUpToTheStepAndItsTasksFollowEachOther) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const SampleStep step =
        MakeSampleStep(RandomGraph(seed, {.with_epilogues = true}), seed);
    const StageGraph& graph = step.plan.graph;
    const CriticalPath path = FindCriticalPath(graph, step.trace);
    Duration sum = path.transfer + path.other + path.epilogue;
    for (const ModuleTimes& module : path.compute) sum += Total(module);
    EXPECT_EQ(sum, step.trace.step_time());
    // Times are as early as they can be, so nothing but transfers lies between.
    EXPECT_EQ(path.other, kZero);
    const auto spans = TaskSpans(graph, step.trace);
    for (size_t i = 1; i < path.tasks.size(); ++i) {
      EXPECT_LE(spans[path.tasks[i - 1]]->end, spans[path.tasks[i]]->start);
    }
  }
}

}  // namespace
}  // namespace pipeloom::trace
