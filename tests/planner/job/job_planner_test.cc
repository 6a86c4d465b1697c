#include "planner/job/job_planner.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

constexpr int64_t kEvaluations = 40;

SearchBudget Evaluations(int64_t number) {
  SearchBudget budget;
  budget.max_evaluations = number;
  return budget;
}

TEST(JobPlannerTest, PlansWhatTheSinglePartsPlan) {
  const JobSpec job = testing::SmallVlmJob();
  const BatchMetadata batch = testing::RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner, JobPlanner::Create(job, batch));
  EXPECT_EQ(planner->strategy().name(), job.search.schedule);
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(job.search.schedule));
  ASSERT_OK_AND_ASSIGN(const PreparedJob prepared,
                       PrepareJob(*strategy, costs, batch));
  EXPECT_EQ(planner->partition(), prepared.partition);
  int64_t first = 0;
  for (int64_t step = 0; step < 2; ++step) {
    ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                         partition::PackStep(job, batch, first));
    ASSERT_OK_AND_ASSIGN(
        const PlanResult expected,
        PlanStep(prepared, {.packed = &packed,
                            .step = step,
                            .budget = Evaluations(kEvaluations)}));
    ASSERT_OK_AND_ASSIGN(
        const PlanResult plan,
        planner->PlanStep(batch, {.first_sample = first,
                                  .step = step,
                                  .budget = Evaluations(kEvaluations)}));
    EXPECT_EQ(plan.plan, expected.plan);
    first += packed.num_samples;
  }
}

TEST(JobPlannerTest, KeepsAGivenPartitionAndCorrectsCosts) {
  const JobSpec job = testing::SmallVlmJob();
  const BatchMetadata batch = testing::RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto plain,
                       JobPlanner::Create(job, batch, {.strategy = "1f1b"}));
  JobPlannerOptions options{.strategy = "1f1b",
                            .partition = plain->partition()};
  options.correct = [&](emulator::StageCostModel* costs) {
    costs->SetCorrections(IdVector<ModuleId, emulator::PassFactors>(
        job.model.modules.size(),
        {.forward = 2, .backward = 2, .weight_grad = 2}));
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto slower,
                       JobPlanner::Create(job, batch, std::move(options)));
  EXPECT_EQ(slower->partition(), plain->partition());
  ASSERT_OK_AND_ASSIGN(const PlanResult once, plain->PlanStep(batch, {}));
  ASSERT_OK_AND_ASSIGN(const PlanResult twice, slower->PlanStep(batch, {}));
  EXPECT_GT(ToSeconds(twice.predicted.step_time()),
            1.9 * ToSeconds(once.predicted.step_time()));
}

TEST(JobPlannerTest, SaysWhatIsNotValid) {
  const JobSpec job = testing::SmallVlmJob();
  const BatchMetadata batch = testing::RandomBatch(1, 400, 6);
  EXPECT_THAT(std::string(JobPlanner::Create(job, batch, {.strategy = "best"})
                              .status()
                              .message()),
              HasSubstr("\"best\""));
  ASSERT_OK_AND_ASSIGN(const auto planner, JobPlanner::Create(job, batch));
  Partition wrong = planner->partition();
  wrong.stages[StageId(0)].num_layers += 1;
  EXPECT_FALSE(
      JobPlanner::Create(job, batch, {.partition = wrong}).status().ok());
  EXPECT_FALSE(
      planner->PlanStep(batch, {.first_sample = 1'000'000}).status().ok());
  EXPECT_FALSE(planner->PlanStep(batch, {.replica = 99}).status().ok());
  EXPECT_FALSE(JobPlanner::Create(JobSpec{}, batch).status().ok());
  EXPECT_EQ(planner->PlanStep({}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JobPlanner::Create(job, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pipeloom::planner
