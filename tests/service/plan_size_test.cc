// The sizes by which the service bounds kept plans, against the heap's own
// account of them.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "partition/batching/batch_split.h"
#include "planner/job/job_planner.h"
#include "planner/step/plan_step.h"
#include "service/jobs/ready_plan.h"
#include "service/plans/plan_cache.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::service {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHeapCounts = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kHeapCounts = false;
#else
constexpr bool kHeapCounts = true;
#endif
#else
constexpr bool kHeapCounts = true;
#endif

double HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

// Plans some steps of a job, one evaluation each.
std::vector<planner::PlanResult> PlansOf(const JobSpec& job,
                                         const BatchMetadata& batch,
                                         int count) {
  const auto planner =
      planner::JobPlanner::Create(job, batch, {.strategy = "interleaved"});
  std::vector<planner::PlanResult> plans;
  for (int step = 0; step < count && planner.ok(); ++step) {
    planner::StepRequest request{.first_sample = step, .step = step};
    request.budget.max_evaluations = 2;
    auto plan = (*planner)->PlanStep(batch, request);
    if (plan.ok()) plans.push_back(*std::move(plan));
  }
  return plans;
}

class PlanSizeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!kHeapCounts) GTEST_SKIP() << "sanitizers have a heap of their own";
    JobSpec job = testing::SmallVlmJob();
    BatchMetadata batch = testing::RandomBatch(1, 4000, 6);
    if (GetParam() != "small") {
      ASSERT_OK_AND_ASSIGN(job, testing::ShippedJob(GetParam()));
      ASSERT_OK_AND_ASSIGN(batch, testing::ShippedBatch("image_text.jsonl"));
    }
    plans_ = PlansOf(job, batch, 4);
    ASSERT_EQ(plans_.size(), 4);
  }
  std::vector<planner::PlanResult> plans_{};
};

// A plan in the cache, as PlanStep has made it.
TEST_P(PlanSizeTest, OfCachedPlansIsWhatTheHeapSays) {
  double counted = 0;
  for (const planner::PlanResult& plan : plans_) {
    counted += static_cast<double>(SizeOf(plan).count());
  }
  const double before = HeapBytes();
  plans_.clear();
  const double freed = before - HeapBytes();
  EXPECT_GE(counted, 0.9 * freed);
  EXPECT_LE(counted, 1.3 * freed);
}

TEST_P(PlanSizeTest, OfReadyPlansIsWhatTheHeapSays) {
  std::vector<std::unique_ptr<ReadyPlan>> ready;
  for (planner::PlanResult& plan : plans_) {
    ready.push_back(std::make_unique<ReadyPlan>());
    ready.back()->plan = plan.plan;
    MakeShares(ready.back().get());
  }
  double counted = 0;
  for (const auto& plan : ready) {
    counted += static_cast<double>(plan->size.count());
  }
  const double before = HeapBytes();
  ready.clear();
  const double freed = before - HeapBytes();
  EXPECT_GE(counted, 0.9 * freed);
  EXPECT_LE(counted, 1.3 * freed);
}

// A service meets new shapes in every step.
TEST(PriceSizeTest, PricesOfShapesThatDoNotReturnTakeLittle) {
  if (!kHeapCounts) GTEST_SKIP() << "sanitizers have a heap of their own";
  const emulator::StageCostModel model(testing::SmallVlmJob());
  const Stage stage{.module = ModuleId(0),
                    .first_layer = LayerId(0),
                    .num_layers = 1,
                    .rank = RankId(0),
                    .segment = SegmentId(0)};
  const double before = HeapBytes();
  for (int64_t tokens = 1; tokens <= 70'000; ++tokens) {
    model.Cost(stage, {.instances = 1, .tokens = tokens}, false);
  }
  EXPECT_LT(HeapBytes() - before, 70e6);
}

INSTANTIATE_TEST_SUITE_P(Jobs, PlanSizeTest,
                         ::testing::Values("small", "dip-vlm-s", "dip-vlm-l"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace pipeloom::service
