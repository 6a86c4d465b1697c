#include "planner/core/retime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::RandomOrders;

TEST(RetimeTest, AgreesWithTimeScheduleOnRandomOrders) {
  RandomGraphOptions options;
  options.max_ranks = 5;
  options.max_segments = 3;
  options.max_microbatches = 6;
  options.with_epilogues = true;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    Random random(seed);
    const RankOrders orders = RandomOrders(graph, random);
    ASSERT_OK_AND_ASSIGN(const Schedule expected, TimeSchedule(graph, orders));
    const FlatGraph flat(graph);
    const std::vector<int32_t> sequence = Linearize(flat, orders);
    EXPECT_EQ(OrdersOf(flat, sequence), orders);
    Retimer retimer(flat);
    EXPECT_EQ(Nanoseconds(retimer.Retime(sequence)), expected.step_time());
    for (const TaskId t : graph.task_ids()) {
      EXPECT_EQ(kStepStart + Nanoseconds(retimer.start(t.value())),
                expected.start[t]);
    }
  }
}

TEST(RetimeTest, TakesDurationsThatHaveChanged) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {});
    Random random(seed);
    FlatGraph flat(graph);
    const std::vector<int32_t> sequence =
        Linearize(flat, RandomOrders(graph, random));
    Retimer retimer(flat);
    retimer.Retime(sequence);
    for (int64_t& duration : flat.duration) duration = random.Between(0, 9999);
    retimer.TakeDurations();
    EXPECT_EQ(retimer.Retime(sequence), Retimer(flat).Retime(sequence));
  }
}

// More than two producers, and a delay that no 32 bits hold.
TEST(RetimeTest, TakesManyProducersAndLongDelays) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int i = 0; i < 5; ++i) {
    tasks.push_back({.rank = RankId(i % 2),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(0),
                     .duration = Seconds(i + 1)});
    if (i < 4) {
      edges.push_back({.from = TaskId(i),
                       .to = TaskId(4),
                       .delay = Seconds(10 * (i == 1) + i)});
    }
  }
  ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                       StageGraph::Create("many", {{}, {}}, {"model"},
                                          std::move(tasks), std::move(edges)));
  const FlatGraph flat(graph);
  Retimer retimer(flat);
  const std::vector<int32_t> sequence = {0, 1, 2, 3, 4};
  ASSERT_OK_AND_ASSIGN(const Schedule expected,
                       TimeSchedule(graph, OrdersOf(flat, sequence)));
  EXPECT_EQ(Nanoseconds(retimer.Retime(sequence)), expected.step_time());
}

TEST(LinearizeTest, IsEmptyForOrdersThatContradictTheDependencies) {
  const StageGraph graph = testing::UniformGraph({.ranks = 2});
  const FlatGraph flat(graph);
  Random random(1);
  RankOrders orders = RandomOrders(graph, random);
  std::reverse(orders[RankId(0)].begin(), orders[RankId(0)].end());
  EXPECT_TRUE(Linearize(flat, orders).empty());
  orders[RankId(0)].clear();
  EXPECT_TRUE(Linearize(flat, orders).empty());
}

}  // namespace
}  // namespace pipeloom::planner
