#include "planner/bounds/lower_bound.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;

// The simple bound: longest chain; earliest start, load and shortest end of a
// rank.
Duration SimpleBound(const StageGraph& graph) {
  IdVector<TaskId, Duration> head(graph.num_tasks());
  IdVector<TaskId, Duration> tail(graph.num_tasks());
  Duration bound{};
  for (const TaskId t : graph.task_ids()) {
    for (const EdgeId e : graph.incoming(t)) {
      const Dependency& d = graph.edge(e);
      head[t] = std::max(head[t],
                         head[d.from] + graph.task(d.from).duration + d.delay);
    }
  }
  for (int32_t i = graph.num_tasks(); i-- > 0;) {
    const TaskId t(i);
    for (const EdgeId e : graph.outgoing(t)) {
      const Dependency& d = graph.edge(e);
      tail[t] =
          std::max(tail[t], d.delay + graph.task(d.to).duration + tail[d.to]);
    }
    bound = std::max(bound, head[t] + graph.task(t).duration + tail[t]);
  }
  for (const RankId r : graph.rank_ids()) {
    Duration load{};
    Duration first = Duration::max();
    Duration last = Duration::max();
    for (const TaskId t : graph.tasks_of(r)) {
      load += graph.task(t).duration;
      first = std::min(first, head[t]);
      last = std::min(last, tail[t]);
    }
    if (!graph.tasks_of(r).empty())
      bound = std::max(bound, first + load + last);
  }
  return bound;
}

TEST(LowerBoundTest, IsNeverAboveTheOptimumNorUnderTheSimpleBound) {
  int problems = 0;
  for (uint64_t seed = 0; problems < 1000; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Duration bound = LowerBound(*graph);
    EXPECT_GE(bound, SimpleBound(*graph));
    const auto optimum = BruteForceStepTime(*graph);
    if (optimum.has_value()) {
      EXPECT_LE(bound, *optimum);
    }
  }
}

TEST(LowerBoundTest, IsTightForASplitBackwardUniformPipeline) {
  // Load 3 m, and the shortest way in and out of the last rank.
  const StageGraph graph =
      UniformGraph({.ranks = 4, .microbatches = 8, .split_backward = true});
  EXPECT_EQ(LowerBound(graph), Milliseconds(3 * 8 + 3));
}

TEST(LowerBoundTest, CountsTheEpilogueOfARank) {
  StageGraph graph = UniformGraph({.ranks = 2, .microbatches = 1});
  const Duration before = LowerBound(graph);
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  ranks[RankId(0)].epilogue = Milliseconds(5);
  graph = graph.WithRanks(std::move(ranks));
  EXPECT_EQ(LowerBound(graph), before + Milliseconds(5));
}

// A part of an activation cannot be held.
TEST(LowerBoundTest, ALimitBetweenTwoMultiplesOfWhatTasksTakeIsTheLowerOne) {
  const auto bound = [](int64_t limit) {
    return CheapLowerBound(FlatGraph(UniformGraph({.ranks = 8,
                                                   .chunks = 4,
                                                   .microbatches = 19,
                                                   .vee = true,
                                                   .split_backward = true,
                                                   .limit = Bytes(limit)})));
  };
  EXPECT_STREQ(bound(8000).source, "area");
  EXPECT_GT(bound(8000).time, bound(9000).time);
  EXPECT_EQ(bound(8999).time, bound(8000).time);
}

TEST(LowerBoundTest, OfAnEmptyGraphIsZero) {
  EXPECT_EQ(LowerBound(StageGraph()), kZero);
}

}  // namespace
}  // namespace pipeloom::planner
