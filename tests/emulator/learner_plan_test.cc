// Learns from emulated steps of random plans.
#include <cmath>

#include "emulator/calibration/cost_learner.h"
#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;

// The plan with each task's time multiplied, in the order it has.
ExecutionPlan Scaled(const ExecutionPlan& plan, auto factor) {
  IdVector<TaskId, Task> tasks = plan.graph.tasks();
  for (Task& task : tasks) {
    task.duration = Nanoseconds(std::llround(
        static_cast<double>(task.duration.count()) * factor(task)));
  }
  auto graph =
      StageGraph::Create(plan.graph.name(), plan.graph.ranks(),
                         plan.graph.module_names(), tasks, plan.graph.edges());
  PIPELOOM_CHECK(graph.ok());
  ExecutionPlan scaled = plan;
  scaled.graph = *std::move(graph);
  return scaled;
}

ExecutionPlan RandomPlanOf(uint64_t seed) {
  const StageGraph graph = RandomGraph(
      seed, {.max_ranks = 4, .max_segments = 3, .max_microbatches = 6});
  Random random(seed);
  auto schedule = TimeSchedule(graph, RandomOrders(graph, random));
  PIPELOOM_CHECK(schedule.ok());
  auto plan = planner::LowerPlan(graph, *schedule);
  PIPELOOM_CHECK(plan.ok());
  return *std::move(plan);
}

double HiddenFactor(const Task& task) {
  return task.pass == Pass::kForward ? 1.37 : 0.81;
}

TEST(LearnerPlanTest, AfterThreeStepsPredictionsAreWithinOnePercent) {
  int tested = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ExecutionPlan plan = RandomPlanOf(seed);
    CostLearner learned;
    for (uint64_t step = 0; step < 3; ++step) {
      // Some tasks straggle, of one step all.
      Random random(seed * 3 + step);
      ASSERT_OK_AND_ASSIGN(const StepTrace measured,
                           EmulateStep(Scaled(plan, [&](const Task& task) {
                             return HiddenFactor(task) * (step == 1 ? 1.5 : 1) *
                                    (1 + 0.004 * random.Unit());
                           })));
      ASSERT_THAT(learned.Learn(plan.graph, measured).status(), IsOk());
    }
    ASSERT_OK_AND_ASSIGN(const StepTrace truth,
                         EmulateStep(Scaled(plan, HiddenFactor)));
    ASSERT_OK_AND_ASSIGN(
        const StepTrace predicted,
        EmulateStep(Scaled(plan, [&](const Task& task) {
          return learned.Factor(
              plan.graph
                  .module_names()[static_cast<size_t>(task.module.value())],
              task.pass);
        })));
    if (truth.step_time() < Microseconds(1)) continue;
    ++tested;
    EXPECT_NEAR(ToSeconds(predicted.step_time()) / ToSeconds(truth.step_time()),
                1, 0.01);
  }
  EXPECT_GT(tested, 100);
}

}  // namespace
}  // namespace pipeloom::emulator
