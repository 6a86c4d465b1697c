#include "planner/core/reversed_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "planner/core/flat_graph.h"
#include "planner/core/retime.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::RandomOrders;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;

std::vector<int64_t> Peaks(const FlatGraph& graph,
                           const std::vector<int32_t>& sequence) {
  std::vector<int64_t> held(static_cast<size_t>(graph.num_ranks), 0);
  std::vector<int64_t> peak(held);
  for (const int32_t t : sequence) {
    const auto r = static_cast<size_t>(graph.rank[t]);
    held[r] += graph.alloc[t];
    peak[r] = std::max(peak[r], held[r]);
    held[r] -= graph.free[t];
  }
  return peak;
}

TEST(ReversedGraphTest, AnOrderReadBackwardsTakesAsLongAndAsMuchMemory) {
  RandomGraphOptions options;
  options.max_microbatches = 6;
  int reversible = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    options.with_epilogues = seed % 4 == 0;
    const StageGraph graph = RandomGraph(seed, options);
    if (!CanReverse(graph)) continue;
    ++reversible;
    const StageGraph reversed = InReversedTime(graph);
    EXPECT_EQ(InReversedTime(reversed).tasks(), graph.tasks());
    Random random(seed);
    const FlatGraph there(graph);
    const FlatGraph back(reversed);
    const std::vector<int32_t> order =
        Linearize(there, RandomOrders(graph, random));
    const std::vector<int32_t> mirrored = ReadBackwards(order);
    EXPECT_EQ(ReadBackwards(mirrored), order);
    EXPECT_EQ(Retimer(there).Retime(order),
              Retimer(back).Retime(mirrored) + there.epilogue[0]);
    EXPECT_EQ(Peaks(there, order), Peaks(back, mirrored));
  }
  EXPECT_GT(reversible, 100);
}

TEST(ReversedGraphTest, TheOptimumIsThatOfTheGraph) {
  int problems = 0;
  for (uint64_t seed = 0; problems < 300; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value() || !CanReverse(*graph)) continue;
    ++problems;
    const auto forwards = BruteForceStepTime(*graph);
    const auto backwards = BruteForceStepTime(InReversedTime(*graph));
    ASSERT_EQ(forwards.has_value(), backwards.has_value()) << "seed " << seed;
    if (!forwards.has_value()) continue;
    EXPECT_EQ(*forwards, *backwards + graph->rank(RankId(0)).epilogue)
        << "seed " << seed;
  }
}

TEST(ReversedGraphTest, NotWhereEpiloguesDiffer) {
  StageGraph graph = UniformGraph({.ranks = 2, .microbatches = 2});
  EXPECT_TRUE(CanReverse(graph));
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  ranks[RankId(1)].epilogue = Milliseconds(1);
  EXPECT_FALSE(CanReverse(graph.WithRanks(std::move(ranks))));
}

TEST(ReversedGraphTest, NotWherePassesRunDuringOthers) {
  const StageGraph graph =
      UniformGraph({.ranks = 2, .microbatches = 2, .split_backward = true});
  EXPECT_TRUE(CanReverse(graph));
  IdVector<TaskId, Task> tasks = graph.tasks();
  TaskId first;
  TaskId backward;
  for (const TaskId t : graph.tasks_of(RankId(1))) {
    if (tasks[t].pass == Pass::kBackward) backward = t;
    if (tasks[t].pass == Pass::kWeightGrad && first.is_none()) first = t;
  }
  // The first weight gradient during the last backward.
  tasks[first].overlaps = backward;
  const absl::StatusOr<StageGraph> paired =
      StageGraph::Create(graph.name(), graph.ranks(), graph.module_names(),
                         std::move(tasks), graph.edges());
  ASSERT_TRUE(paired.ok()) << paired.status();
  EXPECT_FALSE(CanReverse(*paired));
}

}  // namespace
}  // namespace pipeloom::planner
