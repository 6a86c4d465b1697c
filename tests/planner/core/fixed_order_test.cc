#include "planner/core/fixed_order.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "base/random.h"
#include "planner/core/retime.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::RandomOrders;

// Every lane has durations of its own; each equals a Retimer of a graph with
// these durations, and so does the timing of one set.
TEST(FixedOrderTest, EveryLaneEqualsRetimerOnRandomOrders) {
  RandomGraphOptions options;
  options.max_ranks = 5;
  options.max_segments = 3;
  options.max_microbatches = 6;
  options.with_epilogues = true;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    Random random(seed);
    FlatGraph flat(graph);
    const std::vector<int32_t> sequence =
        Linearize(flat, RandomOrders(graph, random));
    const FixedOrder order(flat, sequence);
    ASSERT_EQ(order.num_tasks(), graph.num_tasks());
    FixedOrder::BatchDurations batch;
    FixedOrder::Durations alone;
    FixedOrder::Workspace workspace;
    std::array<int64_t, FixedOrder::kLanes> expected{};
    for (int32_t lane = 0; lane < FixedOrder::kLanes; ++lane) {
      for (int64_t& duration : flat.duration) {
        duration = random.Between(0, 3'000'000'000);
      }
      expected[lane] = Retimer(flat).Retime(sequence);
      order.Arrange(flat.duration, lane, batch);
      order.Arrange(flat.duration, alone);
      EXPECT_EQ(order.Time(alone, workspace), expected[lane]);
    }
    EXPECT_EQ(order.Time(batch, workspace), expected);
  }
}

TEST(FixedOrderTest, OneTaskOfOneLaneCanChange) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {});
    Random random(seed);
    FlatGraph flat(graph);
    const std::vector<int32_t> sequence =
        Linearize(flat, RandomOrders(graph, random));
    const FixedOrder order(flat, sequence);
    FixedOrder::BatchDurations batch;
    FixedOrder::Workspace workspace;
    order.ArrangeAll(flat.duration, batch);
    const int64_t before = Retimer(flat).Retime(sequence);
    const auto task = static_cast<int32_t>(random.Below(graph.num_tasks()));
    const auto lane = static_cast<int32_t>(random.Below(FixedOrder::kLanes));
    flat.duration[task] += 1'000'000;
    order.Set(task, flat.duration[task], lane, batch);
    const auto times = order.Time(batch, workspace);
    for (int32_t l = 0; l < FixedOrder::kLanes; ++l) {
      EXPECT_EQ(times[l], l == lane ? Retimer(flat).Retime(sequence) : before);
    }
  }
}

// Three producers with delays beyond 32 bits; the one with the latest arrival
// is none of the first two.
TEST(FixedOrderTest, TakesManyProducersAndLongDelays) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int i = 0; i < 5; ++i) {
    tasks.push_back({.rank = RankId(i),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(0),
                     .duration = Seconds(1)});
    if (i < 4) {
      edges.push_back(
          {.from = TaskId(i), .to = TaskId(4), .delay = Seconds(5 * i)});
    }
  }
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      StageGraph::Create("many", {{}, {}, {}, {}, {}}, {"model"},
                         std::move(tasks), std::move(edges)));
  const FlatGraph flat(graph);
  const FixedOrder order(flat, {0, 1, 2, 3, 4});
  FixedOrder::Durations durations;
  FixedOrder::Workspace workspace;
  order.Arrange(flat.duration, durations);
  EXPECT_EQ(Nanoseconds(order.Time(durations, workspace)), Seconds(17));
}

TEST(FixedOrderTest, AnEmptyGraphTakesItsEpilogue) {
  RankSpec rank;
  rank.epilogue = Microseconds(7);
  ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                       StageGraph::Create("empty", {rank}, {}, {}, {}));
  const FlatGraph flat(graph);
  const FixedOrder order(flat, {});
  FixedOrder::BatchDurations durations;
  FixedOrder::Workspace workspace;
  const auto times = order.Time(durations, workspace);
  for (const int64_t time : times) EXPECT_EQ(Nanoseconds(time), rank.epilogue);
}

}  // namespace
}  // namespace pipeloom::planner
