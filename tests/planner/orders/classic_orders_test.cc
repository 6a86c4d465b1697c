#include "planner/orders/classic_orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "ir/plan/partition.h"
#include "planner/search/search_graph.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::UniformGraph;
using ::pipeloom::testing::UniformOptions;

Partition StagesOf(const StageGraph& graph) {
  Partition partition;
  partition.num_ranks = graph.num_ranks();
  for (const Task& task : graph.tasks()) {
    while (partition.stages.size() <= task.stage.value()) {
      partition.stages.push_back({});
    }
    Stage& stage = partition.stages[task.stage];
    stage.rank = task.rank;
    stage.segment = SegmentId(task.stage.value() / graph.num_ranks());
    partition.num_segments =
        std::max(partition.num_segments, stage.segment.value() + 1);
  }
  return partition;
}

// At equal memory and from the first evaluations on: the classics are among
// the starting points.
TEST(ClassicOrdersTest, NoClassicStrategyBeatsTheSearchOnUniformPipelines) {
  for (const int32_t ranks : {2, 4, 8}) {
    for (const int32_t chunks : {1, 2}) {
      for (const bool vee : {false, true}) {
        for (const int64_t limit :
             {0, 2 * chunks * ranks, chunks * ranks, chunks * ranks / 2 + 1}) {
          const StageGraph graph =
              UniformGraph({.ranks = ranks,
                            .chunks = chunks,
                            .microbatches = 3 * ranks,
                            .vee = vee,
                            .split_backward = true,
                            .forward = Microseconds(1458),
                            .backward = Microseconds(1476),
                            .weight_grad = Microseconds(1158),
                            .limit = Bytes(1000 * limit)});
          SearchBudget budget;
          budget.max_evaluations = 12;
          const auto found = SearchGraph(graph, /*seed=*/1, budget);
          for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1",
                                   "zb-v", "v-half", "v-min", "dualpipe-v"}) {
            SCOPED_TRACE(::testing::Message()
                         << name << " ranks " << ranks << " chunks " << chunks
                         << " vee " << vee << " limit " << limit);
            ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(name));
            const auto classic =
                strategy->MakeSchedule(graph, StagesOf(graph), 1, budget);
            if (!classic.ok() ||
                !ValidateSchedule(graph, classic->schedule).ok()) {
              continue;
            }
            ASSERT_TRUE(found.ok()) << found.status();
            EXPECT_LE(found->schedule.step_time(),
                      classic->schedule.step_time());
          }
        }
      }
    }
  }
}

TEST(ClassicOrdersTest, NoneForUnequalMicrobatchesOrOddStages) {
  EXPECT_TRUE(ClassicOrders(StageGraph()).empty());
  // Three stages on two ranks.
  IdVector<TaskId, Task> tasks;
  for (int i = 0; i < 3; ++i) {
    tasks.push_back({.rank = RankId(i % 2),
                     .module = ModuleId(0),
                     .stage = StageId(i),
                     .microbatch = MicrobatchId(0)});
  }
  ASSERT_OK_AND_ASSIGN(
      const StageGraph odd,
      StageGraph::Create("odd", {{}, {}}, {"model"}, std::move(tasks), {}));
  EXPECT_TRUE(ClassicOrders(odd).empty());
}

}  // namespace
}  // namespace pipeloom::planner
