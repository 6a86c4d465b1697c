#include "planner/construct/fill_weight_grads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "planner/core/executor.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;

// Returns each rank's tasks in the order of their ids: one microbatch after
// another.
RankOrders ById(const StageGraph& graph) {
  RankOrders orders(graph.num_ranks());
  for (const TaskId t : graph.task_ids()) {
    orders[graph.task(t).rank].push_back(t);
  }
  return orders;
}

// With passes of equal times, a zero-bubble schedule waits only for the first
// forwards: m microbatches on p ranks take 3 m + p - 1 passes (Qi et al., 2024,
// "Zero bubble pipeline parallelism"). With 1F1B's memory, where ZB-H1 takes as
// long, the list schedule takes up to two passes more.
TEST(FillWithWeightGradsTest, UniformPipelinesGetAZeroBubbleSchedule) {
  const Duration kPass = Microseconds(1000);
  for (const int32_t ranks : {2, 4, 8}) {
    for (const int64_t held : {0, ranks}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, " << held);
      const int32_t microbatches = 3 * ranks;
      const StageGraph graph = UniformGraph({.ranks = ranks,
                                             .microbatches = microbatches,
                                             .split_backward = true,
                                             .limit = Bytes(1000 * held)});
      const RankOrders filled = FillWithWeightGrads(graph, ById(graph));
      ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                           TimeSchedule(graph, filled));
      ASSERT_THAT(ValidateSchedule(graph, schedule), IsOk());
      const Duration least = (3 * microbatches + ranks - 1) * kPass;
      EXPECT_GE(schedule.step_time(), least);
      EXPECT_LE(schedule.step_time(), held == 0 ? least : least + 2 * kPass);
    }
  }
}

TEST(FillWithWeightGradsTest, IsLegalAndNeverBeatsTheOptimum) {
  int with_weight_grads = 0;
  for (uint64_t seed = 0; with_weight_grads < 300; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const bool has_any = std::any_of(
        graph->tasks().begin(), graph->tasks().end(),
        [](const Task& task) { return task.pass == Pass::kWeightGrad; });
    const RankOrders filled = FillWithWeightGrads(*graph, ById(*graph));
    EXPECT_EQ(filled.empty(), !has_any);
    if (!has_any) continue;
    ++with_weight_grads;
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimeSchedule(*graph, filled));
    ASSERT_THAT(ValidateSchedule(*graph, schedule), IsOk());
    const auto optimum = BruteForceStepTime(*graph);
    ASSERT_TRUE(optimum.has_value());
    EXPECT_GE(schedule.step_time(), *optimum);
  }
}

// A microbatch that does not fit alone has no list schedule.
TEST(FillWithWeightGradsTest, NothingWhereAMicrobatchDoesNotFit) {
  const StageGraph graph =
      UniformGraph({.ranks = 2, .split_backward = true, .limit = Bytes(999)});
  EXPECT_TRUE(FillWithWeightGrads(graph, ById(graph)).empty());
}

}  // namespace
}  // namespace pipeloom::planner
