#include "planner/bounds/plan_bound.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "emulator/stage/stage_cost.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/random_job.h"
#include "tests/planner/small_step.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using testing::WithRoom;

// A limit far above what all activations take adds nothing, and the bound does
// not say that memory gave it.
TEST(PlanBoundTest, NamesMemoryOnlyWhereItBinds) {
  int loads = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const testing::SmallStep problem =
        testing::MakeSmallStep(seed, 32, true, /*waits=*/true);
    const NamedBound bound =
        PlanBound(WithRoom(problem.graph, int64_t{1} << 60), &problem.memory);
    EXPECT_STRNE(bound.source, "area");
    EXPECT_STRNE(bound.source, "memory");
    loads += std::string(bound.source) == "rank load" ? 1 : 0;
  }
  EXPECT_GE(loads, 1);
}

// Weight gradients of encoders run in the gaps of the frozen backbone's
// backwards, which have no weight gradients of their own.
TEST(PlanBoundTest, IsNoLongerThanPlansThatUseTheGapsOfFrozenModules) {
  int plans = 0;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(::testing::Message() << "job " << seed);
    testing::RandomJobCase made = testing::RandomJob(seed);
    if (made.job.model.modules.size() < 2) continue;
    made.job.training.frozen_modules = {"backbone"};
    made.job.parallel.tp = 8;
    made.job.parallel.pp = 1 + static_cast<int32_t>(seed % 2);
    const emulator::StageCostModel costs(made.job);
    ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                         partition::PackStep(made.job, made.batch, 0));
    for (const char* name : {"1f1b", "pipeloom"}) {
      SCOPED_TRACE(name);
      ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(name));
      ASSERT_OK_AND_ASSIGN(
          const PreparedJob prepared,
          testing::PrepareByRule(*strategy, costs, made.batch));
      PlanInput input{.packed = &packed};
      input.budget.max_evaluations = 4;
      ASSERT_OK_AND_ASSIGN(const PlanResult plan, PlanStep(prepared, input));
      EXPECT_LE(plan.lower_bound, plan.predicted.step_time());
      ++plans;
    }
  }
  EXPECT_GT(plans, 20);
}

}  // namespace
}  // namespace pipeloom::planner
