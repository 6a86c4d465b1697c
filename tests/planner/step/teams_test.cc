// Steps that are planned by several teams of workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "base/random.h"
#include "emulator/stage/stage_cost.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

// One step of a small job under a limit that needs recomputation.
class TeamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job_ = SmallVlmJob();
    job_.training.microbatches = 12;
    batch_ = RandomBatch(5, 200, 6);
    Prepare("pipeloom");
    ASSERT_OK_AND_ASSIGN(packed_, partition::PackStep(job_, batch_, 0));
    const PlanResult roomy = Plan(1, 2, 40);
    Bytes peak;
    for (const Bytes bytes : roomy.peak_bytes()) peak = std::max(peak, bytes);
    job_.training.memory_limit = Bytes(peak.count() * 8 / 10);
    Prepare("pipeloom");
  }

  void Prepare(const std::string& name) {
    costs_ = std::make_unique<emulator::StageCostModel>(job_);
    strategy_ = *MakeStrategy(name);
    prepared_ = *PrepareJob(*strategy_, *costs_, batch_);
  }

  PlanResult Plan(uint64_t seed, int32_t workers, int64_t evaluations,
                  int32_t threads = 1) const {
    PlanInput input{.packed = &packed_, .seed = seed};
    input.budget.max_evaluations = evaluations;
    input.budget.workers = workers;
    input.budget.threads = threads;
    return *PlanStep(prepared_, input);
  }

  JobSpec job_;
  BatchMetadata batch_;
  std::unique_ptr<emulator::StageCostModel> costs_;
  std::unique_ptr<Strategy> strategy_;
  PreparedJob prepared_;
  partition::PackedStep packed_;
};

TEST_F(TeamsTest, ThePlanIsTheBestOfWhatTeamsOfTwoFindAlone) {
  constexpr int64_t kEvaluations = 60;  // For each team.
  int others_better = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Duration first = Plan(seed, 2, kEvaluations).predicted.step_time();
    Duration best = first;
    for (int i = 1; i < 4; ++i) {
      best = std::min(
          best, Plan(random.Next(), 2, kEvaluations).predicted.step_time());
    }
    const PlanResult all = Plan(seed, 8, 4 * kEvaluations);
    EXPECT_EQ(all.predicted.step_time(), best);
    EXPECT_GT(all.evaluations, 2 * kEvaluations);
    others_better += best < first ? 1 : 0;
  }
  EXPECT_GT(others_better, 0);
}

TEST_F(TeamsTest, ThePlanIsTheSameForAnyNumberOfThreads) {
  for (const int32_t workers : {5, 8}) {
    SCOPED_TRACE(workers);
    const PlanResult one = Plan(3, workers, 200, 1);
    for (const int32_t threads : {2, 3, 8}) {
      const PlanResult many = Plan(3, workers, 200, threads);
      EXPECT_EQ(many.plan, one.plan) << threads;
      EXPECT_EQ(many.evaluations, one.evaluations) << threads;
    }
  }
}

// Teams that begin after the deadline would make the plan late.
TEST_F(TeamsTest, OnlyTheFirstTeamPlansWhenTheTimeIsOver) {
  PlanInput input{.packed = &packed_, .seed = 4};
  input.budget.expired = [] { return true; };
  input.budget.spent = [] { return 1.0; };
  input.budget.workers = 8;
  input.budget.threads = 8;
  ASSERT_OK_AND_ASSIGN(const PlanResult eight, PlanStep(prepared_, input));
  input.budget.workers = 2;
  input.budget.threads = 2;
  ASSERT_OK_AND_ASSIGN(const PlanResult two, PlanStep(prepared_, input));
  EXPECT_EQ(eight.plan, two.plan);
  EXPECT_EQ(eight.evaluations, two.evaluations);
}

// Rivals that search have teams too, whether they choose memory or not.
TEST_F(TeamsTest, EveryStrategyThatSearchesHasTeams) {
  for (const std::string name : {"dip", "dip-order"}) {
    SCOPED_TRACE(name);
    Prepare(name);
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      Random random(seed);
      Duration best = Plan(seed, 2, 60).predicted.step_time();
      best = std::min(best, Plan(random.Next(), 2, 60).predicted.step_time());
      EXPECT_EQ(Plan(seed, 4, 120).predicted.step_time(), best) << seed;
    }
  }
}

// Such a strategy would do the same in every team.
TEST_F(TeamsTest, AStrategyWithoutASearchPlansOnce) {
  Prepare("1f1b");
  const PlanResult two = Plan(1, 2, 200);
  const PlanResult eight = Plan(1, 8, 200);
  EXPECT_EQ(eight.plan, two.plan);
  EXPECT_EQ(eight.evaluations, two.evaluations);
}

TEST_F(TeamsTest, TooManyWorkersAreRefused) {
  PlanInput input{.packed = &packed_};
  input.budget.max_evaluations = 400;
  input.budget.workers = kMostWorkers + 1;
  EXPECT_THAT(PlanStep(prepared_, input),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("workers is 257; it must be in [1, 256]")));
}

TEST_F(TeamsTest, AStoppedSearchIsCancelled) {
  std::stop_source source;
  source.request_stop();
  PlanInput input{.packed = &packed_};
  input.budget.max_evaluations = 400;
  input.budget.workers = 8;
  input.budget.needs_answer = false;
  input.budget.stop = source.get_token();
  EXPECT_TRUE(absl::IsCancelled(PlanStep(prepared_, input).status()));
}

}  // namespace
}  // namespace pipeloom::planner
