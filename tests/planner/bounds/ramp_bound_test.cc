#include "planner/bounds/ramp_bound.h"

#include <gtest/gtest.h>

#include <utility>

#include "planner/bounds/lower_bound.h"
#include "planner/search/exact_search.h"
#include "tests/planner/bound_checks.h"
#include "tests/planner/random_pipelines.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomPipeline;

int64_t Ramp(const FlatGraph& graph) {
  const HeadsAndTails chains = ChainsOf(graph);
  return RampBound(graph, chains.head, chains.tail, LowerBound(graph),
                   /*points=*/1000);
}

TEST(RampBoundTest, IsNeverAboveTheOptimumOfPipelines) {
  testing::ExpectNeverAboveOptimumOfPipelines(Ramp);
}

TEST(RampBoundTest, IsNeverAboveTheOptimumOfParallelEncoders) {
  testing::ExpectNeverAboveOptimumOfParallelEncoders(Ramp);
}

// Where it matters: several microbatches on the way from rank to rank, that may
// overtake each other, with and without waiting for transfers.
TEST(RampBoundTest, IsNeverAboveWhatTheExactSearchProves) {
  SearchBudget budget;
  budget.max_evaluations = 20'000;
  int proven = 0;
  int better = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const bool backward = seed % 2 == 1;
    const auto ranks = static_cast<int32_t>(2 + seed / 2 % 3);
    const int32_t microbatches = backward ? 4 : 6;
    const FlatGraph flat(RandomPipeline(seed, ranks, microbatches, backward,
                                        /*unequal=*/seed % 3 == 0,
                                        /*delays=*/seed % 5 < 2));
    const ExactResult exact = ExactSearch(flat, kNoLimit, {}, budget);
    if (!exact.proven || exact.sequence.empty()) continue;
    ++proven;
    const int64_t ramp = Ramp(flat);
    better += ramp > LowerBound(flat);
    EXPECT_LE(ramp, exact.step_time) << "seed " << seed;
    EXPECT_LE(StrongLowerBound(flat, SearchBudget{}).time, exact.step_time)
        << "seed " << seed;
  }
  EXPECT_GT(proven, 400);
  EXPECT_GT(better, 20);
}

// Forwards of 1, 1, 4 and 4 on 4 ranks, nothing else: by their heads the second
// rank's tasks fill it from 1 on; but the first rank makes them one after
// another. All orders take sum + (ranks - 1) * longest.
TEST(RampBoundTest, KnowsThatOneRankMakesTasksOneByOne) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (const int64_t d : {1, 1, 4, 4}) {
    for (int32_t r = 0; r < 4; ++r) {
      const TaskId id = tasks.push_back({.rank = RankId(r),
                                         .module = ModuleId(0),
                                         .stage = StageId(r),
                                         .microbatch = MicrobatchId(0),
                                         .duration = Nanoseconds(d)});
      if (r > 0) edges.push_back({.from = TaskId(id.value() - 1), .to = id});
    }
  }
  const auto graph =
      StageGraph::Create("flow", IdVector<RankId, RankSpec>(4), {""},
                         std::move(tasks), std::move(edges));
  ASSERT_TRUE(graph.ok());
  EXPECT_GT(Ramp(FlatGraph(*graph)), 10);
  EXPECT_LE(Ramp(FlatGraph(*graph)), 10 + 3 * 4);
}

}  // namespace
}  // namespace pipeloom::planner
