// Many steps of changing plans in one run: nothing is left behind of them. The
// long form is `pipeloom run --steps 10000` (docs/evaluation/runtime.md).
#include <malloc.h>

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "runtime/launch.h"
#include "runtime/run_steps.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

absl::StatusOr<SharedPlan> PlanOf(int64_t step) {
  const StageGraph graph =
      testing::UniformGraph({.ranks = 2,
                             .microbatches = static_cast<int32_t>(2 + step % 5),
                             .forward = kZero,
                             .backward = kZero,
                             .weight_grad = kZero});
  Random random(static_cast<uint64_t>(step));
  auto schedule = TimeSchedule(graph, testing::RandomOrders(graph, random));
  if (!schedule.ok()) return schedule.status();
  auto plan = planner::LowerPlan(graph, *schedule);
  if (!plan.ok()) return plan.status();
  plan->step = step;
  return std::make_shared<const ExecutionPlan>(*std::move(plan));
}

TEST(SoakTest, AThousandStepsHoldNoMoreMemoryThanAHundred) {
  constexpr int64_t kSteps = 1000;
  constexpr int64_t kEarly = 100;
  size_t early = 0;
  size_t late = 0;
  int64_t done = 0;
  ASSERT_THAT(
      RunSteps(
          kSteps, PlanOf,
          [](const SharedPlan& plan) {
            return RunPlan(*plan, {.allocate = true});
          },
          [&](int64_t step, const SharedPlan& plan, const StepTrace& trace) {
            EXPECT_EQ(plan->step, step);
            EXPECT_EQ(trace.num_ranks, 2);
            ++done;
            // Bytes in use, in all arenas.
            if (step + 1 == kEarly) early = mallinfo2().uordblks;
            if (step + 1 == kSteps) late = mallinfo2().uordblks;
            return absl::OkStatus();
          }),
      testing::IsOk());
  EXPECT_EQ(done, kSteps);
  // The memory of a step varies with its plan; a leak of 100 B per step would
  // show.
  EXPECT_LE(late, early + 90'000);
}

}  // namespace
}  // namespace pipeloom::runtime
