#include "runtime/learned_costs.h"

#include <cmath>
#include <vector>

#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/step/lower_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;
using ::testing::HasSubstr;

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

TEST(LearnedCostsTest, AfterThreeStepsPredictionsAreWithinOnePercent) {
  int tested = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ExecutionPlan plan = RandomPlanOf(seed);
    LearnedCosts learned;
    for (uint64_t step = 0; step < 3; ++step) {
      // Some tasks straggle, of one step all.
      Random random(seed * 3 + step);
      ASSERT_OK_AND_ASSIGN(
          const StepTrace measured,
          emulator::EmulateStep(Scaled(plan, [&](const Task& task) {
            return HiddenFactor(task) * (step == 1 ? 1.5 : 1) *
                   (1 + 0.004 * random.Unit());
          })));
      learned.Learn(plan, measured);
    }
    ASSERT_OK_AND_ASSIGN(const StepTrace truth,
                         emulator::EmulateStep(Scaled(plan, HiddenFactor)));
    ASSERT_OK_AND_ASSIGN(
        const StepTrace predicted,
        emulator::EmulateStep(Scaled(plan, [&](const Task& task) {
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

TEST(LearnedCostsTest, WhatIsAppliedIsNotCountedTwice) {
  const ExecutionPlan plan = RandomPlanOf(3);
  const auto twice = [](const Task&) { return 2.0; };
  ASSERT_OK_AND_ASSIGN(const StepTrace measured,
                       emulator::EmulateStep(Scaled(plan, twice)));
  LearnedCosts first;
  first.Learn(plan, measured);
  const std::string& module = plan.graph.module_names()[0];
  EXPECT_NEAR(first.Factor(module, Pass::kForward), 2, 1e-6);
  // Planned with what was learned, measured as planned.
  LearnedCosts second = first;
  second.Learn(Scaled(plan, twice), measured, &first);
  EXPECT_NEAR(second.Factor(module, Pass::kForward), 2, 1e-6);
}

TEST(LearnedCostsTest, OldMeasurementsFade) {
  const ExecutionPlan plan = RandomPlanOf(3);
  const std::string& module = plan.graph.module_names()[0];
  LearnedCosts learned;
  for (size_t step = 0; step < 3 * LearnedCosts::kRemembered; ++step) {
    const double factor = step < LearnedCosts::kRemembered ? 3 : 1.25;
    ASSERT_OK_AND_ASSIGN(const StepTrace measured,
                         emulator::EmulateStep(Scaled(
                             plan, [&](const Task&) { return factor; })));
    learned.Learn(plan, measured);
  }
  EXPECT_NEAR(learned.Factor(module, Pass::kForward), 1.25, 1e-6);
  EXPECT_EQ(learned.Factor("unheard of", Pass::kForward), 1);
}

TEST(LearnedCostsTest, TheTextParsesBackAndMistakesNameTheLine) {
  const ExecutionPlan plan = RandomPlanOf(8);
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, emulator::EmulateStep(plan));
  LearnedCosts learned;
  learned.Learn(plan, trace);
  learned.Learn(plan, trace);
  ASSERT_OK_AND_ASSIGN(const LearnedCosts read,
                       LearnedCosts::Parse(learned.ToString()));
  EXPECT_EQ(read, learned);
  EXPECT_THAT(LearnedCosts::Parse("{}"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("line 1: expected")));
  EXPECT_THAT(LearnedCosts::Parse(learned.ToString() + "F x 1 \"m\" 2\n"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("expected pass, priced ns")));
}

}  // namespace
}  // namespace pipeloom::runtime
