#include "planner/step/refine_passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "ir/plan/execution_plan.h"
#include "planner/job/job_planner.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;

int64_t PairsOf(const ExecutionPlan& plan) {
  return std::count_if(
      plan.graph.tasks().begin(), plan.graph.tasks().end(),
      [](const Task& task) { return !task.overlaps.is_none(); });
}

// DIP fuses its backwards and fills memory with what it keeps, so that there is
// no room to put weight gradients off. With choices made anew there is, and the
// step gets shorter by it.
TEST(RefinePassesTest, FullMemoryLeavesRoomForPairs) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob("dip-vlm-m"));
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                       ShippedBatch("image_text.jsonl"));
  ASSERT_OK_AND_ASSIGN(
      const PlanResult once,
      PlanFirstStep(job, batch, {.schedule = "dip", .evaluations = 1}));
  ASSERT_OK_AND_ASSIGN(
      const PlanResult refined,
      PlanFirstStep(job, batch, {.schedule = "dip", .evaluations = 4}));
  EXPECT_THAT(ValidateExecutionPlan(refined.plan), IsOk());
  EXPECT_EQ(PairsOf(once.plan), 0);  // One evaluation leaves no refinement.
  EXPECT_GT(PairsOf(refined.plan), 50);
  EXPECT_LT(ToSeconds(refined.predicted.step_time()),
            0.97 * ToSeconds(once.predicted.step_time()));
  for (const RankId r : refined.plan.graph.rank_ids()) {
    EXPECT_LE(refined.peak_bytes()[static_cast<size_t>(r.value())],
              refined.plan.graph.rank(r).memory.limit);
  }
}

}  // namespace
}  // namespace pipeloom::planner
