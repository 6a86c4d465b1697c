// One plan, two interpreters: the emulator and the runtime must agree on all
// that does not depend on how fast threads wake up.
#include <algorithm>
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

void ExpectAgreement(const ExecutionPlan& plan, const Schedule& schedule) {
  ASSERT_OK_AND_ASSIGN(const StepTrace predicted, emulator::EmulateStep(plan));
  ASSERT_OK_AND_ASSIGN(const StepTrace measured,
                       RunPlan(plan, {.time_scale = 1e-3}));
  EXPECT_EQ(TaskOrders(measured), schedule.order);
  EXPECT_EQ(TaskOrders(predicted), schedule.order);
  EXPECT_TRUE(CompareTraces(predicted, measured).same_order);
  // The runtime may be late, but it never makes up time.
  EXPECT_GE(measured.finish, predicted.finish);
  const auto predicted_peaks = MemoryPeaks(predicted);
  const auto measured_peaks = MemoryPeaks(measured);
  for (const RankId rank : plan.graph.rank_ids()) {
    EXPECT_EQ(measured_peaks[rank].total, predicted_peaks[rank].total);
  }
}

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
    ExpectAgreement(plan, schedule);
  }
}

// Limits between those that suffice if tensors are sent late and those that
// suffice if they are sent at once.
TEST(DifferentialTest, EmulatorAndRuntimeAgreeWhereTensorsAreSentLate) {
  int late = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph unlimited = RandomGraph(
        seed, {.max_ranks = 4, .max_segments = 2, .max_microbatches = 6});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(unlimited, RandomOrders(unlimited, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan at_once,
                         planner::LowerPlan(unlimited, schedule));
    const IdVector<RankId, Bytes> peaks = planner::PlanPeaks(at_once);
    IdVector<RankId, RankSpec> ranks = unlimited.ranks();
    for (const RankId r : ranks.ids()) {
      ranks[r].memory.limit = std::max(
          Bytes(1),
          Bytes(peaks[r].count() * (r.value() % 2 == 0 ? 9 : 11) / 10));
    }
    ASSERT_OK_AND_ASSIGN(
        const ExecutionPlan plan,
        planner::LowerPlan(unlimited.WithRanks(ranks), schedule, {},
                           planner::SendTime::kWithRoom));
    if (plan.programs == at_once.programs ||
        !ValidateExecutionPlan(plan).ok()) {
      continue;
    }
    ++late;
    ExpectAgreement(plan, schedule);
  }
  EXPECT_GT(late, 20);
}

}  // namespace
}  // namespace pipeloom::runtime
