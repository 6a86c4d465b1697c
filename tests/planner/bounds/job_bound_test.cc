#include "planner/bounds/job_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/random.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/random_job.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomJobCase;

// Each strategy on its own partition, and pipeloom on random ones.
TEST(JobBoundTest, NoStrategyOnItsOwnPartitionIsFaster) {
  int plans = 0;
  double closest = 1e9;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "job " << seed);
    const RandomJobCase made = RandomJob(seed);
    const emulator::StageCostModel costs(made.job);
    ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                         partition::PackStep(made.job, made.batch, 0));
    ASSERT_OK_AND_ASSIGN(const Duration bound,
                         BoundOfAnyPartition(costs, packed, 0));
    EXPECT_GT(bound, kZero);
    for (const char* name : {"gpipe", "1f1b", "megatron", "zb-v", "nnscaler",
                             "optimus", "disttrain", "dip", "pipeloom"}) {
      SCOPED_TRACE(name);
      ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(name));
      const auto prepared =
          testing::PrepareByRule(*strategy, costs, made.batch);
      if (!prepared.ok()) continue;
      PlanInput input{.packed = &packed};
      input.budget.max_evaluations = 30;
      const auto plan = PlanStep(*prepared, input);
      if (!plan.ok()) continue;
      ++plans;
      EXPECT_GE(plan->predicted.step_time(), bound);
      closest = std::min(
          closest, ToSeconds(plan->predicted.step_time()) / ToSeconds(bound));
    }
  }
  EXPECT_GT(plans, 150);
  RecordProperty("plans", plans);
  RecordProperty("closest", std::to_string(closest));
  // It is of use: some plan is near it.
  EXPECT_LT(closest, 1.3);
}

}  // namespace
}  // namespace pipeloom::planner
