// One plan, two interpreters: the emulator and the runtime must agree on all
// that does not depend on how fast threads wake up.
#include <vector>

#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "runtime/launch.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;

TEST(DifferentialTest, EmulatorAndRuntimeAgreeOnRandomPlans) {
  for (uint64_t seed = 1000; seed < 1500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {.max_ranks = 4,
                                                .max_segments = 3,
                                                .max_microbatches = 4,
                                                .with_epilogues = true});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         planner::LowerPlan(graph, schedule));
    ASSERT_OK_AND_ASSIGN(const StepTrace predicted,
                         emulator::EmulateStep(plan));
    ASSERT_OK_AND_ASSIGN(const StepTrace measured,
                         RunPlan(plan, {.time_scale = 1e-3}));
    EXPECT_EQ(TaskOrders(measured), schedule.order);
    EXPECT_EQ(TaskOrders(predicted), schedule.order);
    EXPECT_TRUE(CompareTraces(predicted, measured).same_order);
    // The runtime may be late, but it never makes up time.
    EXPECT_GE(measured.finish, predicted.finish);
    const auto predicted_peaks = MemoryPeaks(predicted);
    const auto measured_peaks = MemoryPeaks(measured);
    for (const RankId rank : graph.rank_ids()) {
      EXPECT_EQ(measured_peaks[rank].total, predicted_peaks[rank].total);
    }
  }
}

}  // namespace
}  // namespace pipeloom::runtime
