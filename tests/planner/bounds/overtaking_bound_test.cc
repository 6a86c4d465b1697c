#include "planner/bounds/overtaking_bound.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "planner/bounds/lower_bound.h"
#include "planner/search/exact_search.h"
#include "tests/planner/bound_checks.h"
#include "tests/planner/random_pipelines.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomPipeline;

int64_t Overtaking(const FlatGraph& graph) {
  const HeadsAndTails chains = ChainsOf(graph);
  return OvertakingBound(graph, chains.head, chains.tail);
}

TEST(OvertakingBoundTest, IsNeverAboveTheOptimumOfPipelines) {
  testing::ExpectNeverAboveOptimumOfPipelines(Overtaking);
}

TEST(OvertakingBoundTest, IsNeverAboveTheOptimumOfParallelEncoders) {
  testing::ExpectNeverAboveOptimumOfParallelEncoders(Overtaking);
}

// Dominant microbatches among others that go ahead of them, behind them and
// past them, once or twice round the ranks, with transfers that take longer
// than tasks, or without transfers.
TEST(OvertakingBoundTest, IsNeverAboveWhatTheExactSearchProves) {
  SearchBudget budget;
  budget.max_evaluations = 20'000;
  int proven = 0;
  int better = 0;
  int optimal = 0;
  for (uint64_t seed = 0; seed < 1200; ++seed) {
    const bool backward = seed % 2 == 1;
    const auto ranks = static_cast<int32_t>(2 + seed / 2 % 3);
    const int32_t rounds = seed % 7 == 0 ? 2 : 1;
    const int32_t microbatches = (backward ? 4 : 6) - rounds + 1;
    const FlatGraph flat(RandomPipeline(
        seed, ranks, microbatches, backward, /*unequal=*/seed % 3 == 0,
        /*delays=*/seed % 5 < 2,
        /*dominant=*/1 + static_cast<int64_t>(seed % 4), rounds));
    const ExactResult exact = ExactSearch(flat, kNoLimit, {}, budget);
    if (!exact.proven || exact.sequence.empty()) continue;
    ++proven;
    const int64_t bound = Overtaking(flat);
    EXPECT_LE(bound, exact.step_time) << "seed " << seed;
    better += bound > LowerBound(flat);
    optimal += bound == exact.step_time && bound > LowerBound(flat);
  }
  EXPECT_GT(proven, 800);
  EXPECT_GT(better, 200);
  EXPECT_GT(optimal, 50);
}

// The header's example: 16 ms forwards and 32 ms back, and each of the ten
// others takes 1 ms of its time, wherever they pass each other.
TEST(OvertakingBoundTest, EveryMicrobatchTakesTimeOfTheDominantOne) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int32_t m = 0; m < 11; ++m) {
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t rank = i < 4 ? i : 7 - i;
      const TaskId id = tasks.push_back(
          {.rank = RankId(rank),
           .pass = i < 4 ? Pass::kForward : Pass::kBackward,
           .module = ModuleId(0),
           .stage = StageId(rank),
           .microbatch = MicrobatchId(m),
           .duration = Nanoseconds((m == 0 ? 4 : 1) * (i < 4 ? 1 : 2))});
      if (i > 0) edges.push_back({.from = TaskId(id.value() - 1), .to = id});
    }
  }
  const auto graph =
      StageGraph::Create("clip", IdVector<RankId, RankSpec>(4), {""},
                         std::move(tasks), std::move(edges));
  ASSERT_TRUE(graph.ok());
  const FlatGraph flat(*graph);
  EXPECT_EQ(Overtaking(flat), 58);
  EXPECT_LT(LowerBound(flat), 58);
  EXPECT_STREQ(CheapLowerBound(flat).source, "overtaking");
}

}  // namespace
}  // namespace pipeloom::planner
