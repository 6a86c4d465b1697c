#include "planner/job/warm_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "planner/job/job_planner.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NotNull;
using ::testing::SizeIs;

SearchBudget Evaluations(int64_t number, int32_t threads = 1) {
  SearchBudget budget;
  budget.max_evaluations = number;
  budget.threads = threads;
  return budget;
}

TEST(WarmUpTest, PlansFourStepsForAnyNumberOfThreads) {
  const BatchMetadata batch = RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner,
                       JobPlanner::Create(SmallVlmJob(), batch));
  ASSERT_OK_AND_ASSIGN(const auto lessons,
                       WarmUp(planner->prepared(), batch, 1, Evaluations(400)));
  ASSERT_THAT(lessons, SizeIs(4));
  EXPECT_THAT(lessons, Each(NotNull()));
  ASSERT_OK_AND_ASSIGN(const auto again, WarmUp(planner->prepared(), batch, 1,
                                                Evaluations(400, 2)));
  ASSERT_EQ(again.size(), lessons.size());
  for (size_t i = 0; i < lessons.size(); ++i) {
    EXPECT_EQ(again[i]->places, lessons[i]->places);
  }
  // A sample of less than a step is repeated.
  ASSERT_OK_AND_ASSIGN(
      const auto few,
      WarmUp(planner->prepared(), RandomBatch(1, 3, 6), 1, Evaluations(40)));
  EXPECT_GE(few.size(), 1);
}

// Other steps than the sample's, each with few evaluations.
TEST(WarmUpTest, OtherStepsAreNoLonger) {
  const BatchMetadata batch = RandomBatch(2, 8000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner,
                       JobPlanner::Create(SmallVlmJob(), batch));
  ASSERT_OK_AND_ASSIGN(const auto lessons,
                       WarmUp(planner->prepared(), RandomBatch(3, 400, 6), 1,
                              Evaluations(8000)));
  double cold = 0;
  double warm = 0;
  for (int64_t step = 0; step < 6; ++step) {
    StepRequest request{
        .first_sample = 60 * step, .step = step, .budget = Evaluations(30)};
    ASSERT_OK_AND_ASSIGN(const PlanResult anew,
                         planner->PlanStep(batch, request));
    request.carried = lessons;
    ASSERT_OK_AND_ASSIGN(const PlanResult on,
                         planner->PlanStep(batch, request));
    EXPECT_THAT(ValidateExecutionPlan(on.plan), IsOk());
    cold += ToSeconds(anew.predicted.step_time());
    warm += ToSeconds(on.predicted.step_time());
  }
  EXPECT_LE(warm, cold);
}

TEST(WarmUpTest, OtherStrategiesLearnNothing) {
  const BatchMetadata batch = RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(
      const auto planner,
      JobPlanner::Create(SmallVlmJob(), batch, {.strategy = "1f1b"}));
  ASSERT_OK_AND_ASSIGN(const auto lessons,
                       WarmUp(planner->prepared(), batch, 1, Evaluations(400)));
  EXPECT_THAT(lessons, IsEmpty());
}

TEST(WarmUpTest, StepsThatDoNotFitAreLeftOut) {
  JobSpec job = SmallVlmJob();
  const BatchMetadata batch = RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto roomy, JobPlanner::Create(job, batch));
  job.training.memory_limit = Bytes(int64_t{1} << 20);
  ASSERT_OK_AND_ASSIGN(
      const auto planner,
      JobPlanner::Create(job, batch, {.partition = roomy->partition()}));
  ASSERT_OK_AND_ASSIGN(const auto lessons,
                       WarmUp(planner->prepared(), batch, 1, Evaluations(400)));
  EXPECT_THAT(lessons, IsEmpty());
}

TEST(WarmUpTest, TellsOfQuickPlansOnlyIfAllLoseByFar) {
  const auto ratios = [](const BatchMetadata& sample,
                         const BatchMetadata& batch) {
    std::vector<double> all;
    const auto planner = JobPlanner::Create(SmallVlmJob(), sample);
    EXPECT_THAT(planner.status(), IsOk());
    SearchBudget budget = Evaluations(400, 2);
    budget.spent = [] { return 0.01; };  // So that quick plans are made.
    const auto lessons = WarmUp((*planner)->prepared(), batch, 1, budget);
    EXPECT_THAT(lessons.status(), IsOk());
    for (const auto& lesson : *lessons) all.push_back(lesson->quick_ratio);
    return all;
  };
  const BatchMetadata usual = RandomBatch(1, 4000, 6);
  EXPECT_THAT(ratios(usual, usual), AllOf(SizeIs(4), Each(0)));
  // Without images, the ranks that a partition for many images gives the
  // encoder have little to do in a static schedule.
  EXPECT_THAT(ratios(RandomBatch(1, 4000, 30), RandomBatch(1, 4000, 0)),
              AllOf(SizeIs(4), Each(Ge(1.25))));
}

TEST(WarmUpTest, EndsWhenItIsNotWanted) {
  const BatchMetadata batch = RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner,
                       JobPlanner::Create(SmallVlmJob(), batch));
  std::stop_source stop;
  stop.request_stop();
  SearchBudget budget = Evaluations(1'000'000'000);
  budget.stop = stop.get_token();
  budget.needs_answer = false;
  EXPECT_THAT(WarmUp(planner->prepared(), batch, 1, budget).status(),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

}  // namespace
}  // namespace pipeloom::planner
