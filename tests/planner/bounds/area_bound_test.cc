#include "planner/bounds/area_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "formats/graph/problem_suite.h"
#include "planner/bounds/lower_bound.h"
#include "tests/planner/bound_checks.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;

int64_t AreaOf(const FlatGraph& graph) {
  const HeadsAndTails chains = ChainsOf(graph);
  return AreaBound(graph, chains.head, chains.tail,
                   LowerBoundWithoutMemory(graph).time);
}

StageGraph Pipeline(int32_t ranks, int32_t microbatches, int32_t chunks,
                    bool split, double pass_us, int64_t activations) {
  formats::PipelineProblem problem;
  problem.ranks = ranks;
  problem.microbatches = microbatches;
  problem.split_backward = split;
  problem.memory_limit = Bytes(activations);
  problem.modules = {{.name = "model",
                      .chunks = chunks,
                      .vee = chunks > 1,
                      .forward = Microseconds(pass_us),
                      .backward = Microseconds(pass_us),
                      .weight_grad = Microseconds(pass_us),
                      .activation = Bytes(1)}};
  auto graph = formats::MakePipelineGraph("problem", problem);
  EXPECT_THAT(graph, IsOk());
  return *std::move(graph);
}

TEST(AreaBoundTest, IsNeverAboveTheOptimum) {
  testing::ExpectNeverAboveOptimumOfPipelines(AreaOf);
  testing::ExpectNeverAboveOptimumOfParallelEncoders(AreaOf);
}

TEST(AreaBoundTest, IsAboveTheOtherBoundsOnSomeSmallProblems) {
  int above = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    const auto graph = testing::SmallProblem(seed);
    if (!graph.has_value()) continue;
    const FlatGraph flat(*graph);
    const int64_t area = AreaOf(flat);
    above += area > LowerBoundWithoutMemory(flat).time ? 1 : 0;
  }
  EXPECT_GT(above, 10);
}

// With one activation a rank, the first rank's is held for all passes of a
// microbatch, one microbatch after another.
TEST(AreaBoundTest, IsTheStepTimeOfMicrobatchesOneByOne) {
  for (const int32_t ranks : {2, 3}) {
    for (const int32_t microbatches : {1, 2, 5}) {
      const FlatGraph flat(
          Pipeline(ranks, microbatches, 1, /*split=*/false, 10, 1));
      const int64_t all = Microseconds(30 * ranks * microbatches).count();
      if (microbatches > 1) {
        EXPECT_EQ(AreaOf(flat), all);
      }
      EXPECT_EQ(CheapLowerBound(flat).time, all);
    }
  }
}

// The header's example: 17 passes for each of 19 microbatches. The last rank's
// memory is empty for the first 7, and it fills and empties at the pace of
// passes, which takes 7 * 7 / 2 / 8 of it at either end: 6.125, rounded up.
TEST(AreaBoundTest, CountsMemoryOfManyChunks) {
  const FlatGraph flat(Pipeline(8, 19, 4, /*split=*/true, 250, 8));
  const NamedBound bound = CheapLowerBound(flat);
  EXPECT_STREQ(bound.source, "area");
  EXPECT_EQ(bound.time, Microseconds(250 * (17 * 19 + 7 + 7)).count());
}

// One rank, whose microbatches wait 99 ms between a forward and a backward of
// 10 ms each, with room for three: each holds a third of the memory for 119 ms,
// and four take 159 ms of it. The second and third forward cannot begin before
// 10 and 20 ms, nor can the first two of the last three backwards end later
// than 20 and 10 ms before the end; but one task more is begun than the bound
// counts as run, so it is less by the half of a step.
TEST(AreaBoundTest, MemoryFillsAndEmptiesAtThePaceOfTasks) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int32_t m = 0; m < 12; ++m) {
    Task task{.rank = RankId(0),
              .module = ModuleId(0),
              .stage = StageId(0),
              .microbatch = MicrobatchId(m),
              .duration = Milliseconds(10),
              .alloc = Bytes(1)};
    const TaskId forward = tasks.push_back(task);
    task.pass = Pass::kBackward;
    task.alloc = Bytes(0);
    task.free = Bytes(1);
    const TaskId backward = tasks.push_back(task);
    edges.push_back(
        {.from = forward, .to = backward, .delay = Milliseconds(99)});
  }
  IdVector<RankId, RankSpec> ranks(1);
  ranks[RankId(0)].memory.limit = Bytes(3);
  const auto graph = StageGraph::Create("wait", std::move(ranks), {"model"},
                                        std::move(tasks), std::move(edges));
  ASSERT_THAT(graph, IsOk());
  // 12 x 119 / 3 = 476 ms of full memory. In the first 20 ms memory fills,
  // which leaves 2 bytes x 20 ms / 2 unused, and as much in the last 20 ms:
  // 40 byte ms of 3 bytes are 40 / 3 ms.
  EXPECT_EQ(AreaOf(FlatGraph(*graph)), 489'333'333);
}

TEST(AreaBoundTest, IsNoneWhereNoLimitBindsOrBytesHaveNoPair) {
  EXPECT_EQ(AreaOf(FlatGraph(Pipeline(2, 3, 1, false, 10, 3))), 0);
  FlatGraph unpaired(Pipeline(2, 3, 1, false, 10, 1));
  for (int64_t& bytes : unpaired.free) bytes *= 2;
  EXPECT_EQ(AreaOf(unpaired), 0);
}

// Returns the longest chain from the end of one task to the start of another,
// by going back over all chains; -1: there is none.
int64_t ChainByRecursion(const FlatGraph& graph, int32_t from, int32_t to) {
  int64_t longest = -1;
  for (int32_t e = graph.pred_offset[to]; e < graph.pred_offset[to + 1]; ++e) {
    const int32_t before = graph.pred[e];
    if (before == from) {
      longest = std::max(longest, graph.pred_delay[e]);
      continue;
    }
    const int64_t chain = ChainByRecursion(graph, from, before);
    if (chain < 0) continue;
    longest =
        std::max(longest, chain + graph.duration[before] + graph.pred_delay[e]);
  }
  return longest;
}

// All pairs of tasks of some problems, more than one walk's worth.
TEST(ChainsBetweenTest, AreThoseOfARecursion) {
  int with_chain = 0;
  int without = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto graph = testing::SmallProblem(seed);
    if (!graph.has_value()) continue;
    const FlatGraph flat(*graph);
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (int32_t a = 0; a < flat.num_tasks; ++a) {
      for (int32_t b = 0; b < flat.num_tasks; ++b) {
        if (a != b) pairs.push_back({a, b});
      }
    }
    const std::vector<int64_t> chains = ChainsBetween(flat, pairs);
    ASSERT_EQ(chains.size(), pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto& [from, to] = pairs[i];
      ASSERT_EQ(chains[i], ChainByRecursion(flat, from, to))
          << "seed " << seed << ", " << from << " to " << to;
      (chains[i] < 0 ? without : with_chain) += 1;
    }
  }
  EXPECT_GT(with_chain, 1000);
  EXPECT_GT(without, 1000);
}

}  // namespace
}  // namespace pipeloom::planner
