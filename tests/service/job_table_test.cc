// The table of jobs and the calls that wait, apart from the threads and files
// that use them. Eviction with files and ranks is tested in job_life_test.cc.
#include "service/jobs/job_table.h"

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/jobs/waiting_calls.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::service {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kLast = std::numeric_limits<int64_t>::max();

TEST(WaitingCallsTest, CallsAreTakenByNumberByPlanAndByJob) {
  WaitingCalls calls;
  const auto add = [&](const std::string& job, int64_t step, int32_t rank) {
    return calls.Add({.key = {job, step, 0}, .rank = rank, .done = {}});
  };
  const int64_t first = add("a", 0, 0);
  add("a", 0, 1);
  add("a", 7, 0);
  add("b", 0, 0);
  EXPECT_EQ(calls.size(), 4);
  EXPECT_EQ(calls.size("a"), 3);
  EXPECT_THAT(calls.Keys("a", 6), ElementsAre(PlanKey{"a", 0, 0}));
  EXPECT_THAT(calls.Keys("a", kLast),
              ElementsAre(PlanKey{"a", 0, 0}, PlanKey{"a", 7, 0}));
  EXPECT_EQ(calls.Keys().size(), 3u);
  EXPECT_TRUE(calls.Take(first).has_value());
  EXPECT_FALSE(calls.Take(first).has_value());
  EXPECT_TRUE(calls.Contains(PlanKey{"a", 0, 0}));
  EXPECT_EQ(calls.Take(PlanKey{"a", 0, 0}).size(), 1u);
  EXPECT_FALSE(calls.Contains(PlanKey{"a", 0, 0}));
  EXPECT_EQ(calls.size("a"), 1);
  EXPECT_EQ(calls.TakeAll().size(), 2u);
  EXPECT_EQ(calls.size(), 0);
  EXPECT_EQ(calls.size("b"), 0);
}

TEST(WaitingCallsTest, ACallIsUrgentFromItsTimeOn) {
  WaitingCalls calls;
  const auto now = std::chrono::steady_clock::now();
  calls.Add({.key = {"a", 0, 0}, .hurry_at = now + std::chrono::seconds(1)});
  EXPECT_FALSE(calls.IsUrgent({"a", 0, 0}, now));
  EXPECT_TRUE(calls.IsUrgent({"a", 0, 0}, now + std::chrono::seconds(1)));
  EXPECT_FALSE(calls.IsUrgent({"a", 1, 0}, now + std::chrono::seconds(1)));
}

class JobTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        served_,
        ServedJob::Create("job", testing::SmallVlmJob(),
                          testing::RandomBatch(1, 32, 2), std::nullopt, {}));
    Job job(served_);
    job.files = std::make_shared<JobFiles>(nullptr, "job");
    table_.Add("job", std::move(job));
  }
  Job& job() { return *table_.Find("job"); }
  StepBatch BatchOf(int64_t step, int64_t attempt = 0) const {
    StepBatch batch;
    batch.step = step;
    batch.attempt = attempt;
    batch.content = {static_cast<uint64_t>(step), 1};
    return batch;
  }
  absl::StatusOr<bool> Accept(StepBatch batch, int64_t tasks = 0) {
    submission_ = {.job = served_};
    return table_.Accept("job", {tasks}, std::move(batch), calls_, &submission_,
                         &gone_);
  }
  // Makes a plan of so many bytes for the latest submission.
  void Make(int64_t bytes, bool durable) {
    auto plan = std::make_shared<ReadyPlan>();
    plan->size = Bytes(bytes);
    plan->durable = durable;
    plan->checksum = {7, 7};
    const PlanKey key = KeyOf(submission_.batch->step);
    Step* step = table_.FindStep(key, submission_.batch);
    ASSERT_NE(step, nullptr);
    table_.SetOutcome(0, PlanPtr(plan), &job(), step);
  }
  PlanKey KeyOf(int64_t step) const {
    return {"job", step, 0, table_.Find("job")->attempt};
  }
  const Outcome* OutcomeOf(int64_t step) {
    return JobTable::FindOutcome(job(), KeyOf(step));
  }
  void Fetch(int64_t step) {
    const int32_t ranks = served_->spec().parallel.pp;
    for (int32_t r = 0; r < ranks; ++r) {
      JobTable::NoteFetch(KeyOf(step), r, &job());
    }
  }

  std::shared_ptr<const ServedJob> served_{};
  JobTable table_{{.keep_steps = 4,  //
                   .max_step_jump = 100,
                   .plan_bytes = Bytes(100'000)}};
  WaitingCalls calls_{};
  Submission submission_{};
  Gone gone_{};
};

TEST_F(JobTableTest, StepsBehindTheNewestAreForgottenAndNeverPlannedAgain) {
  for (int64_t step = 0; step < 6; ++step) {
    EXPECT_EQ(Accept(BatchOf(step)).value(), false);
  }
  EXPECT_EQ(job().steps.begin()->first, 2);
  EXPECT_EQ(gone_.steps.size(), 2u);
  EXPECT_EQ(gone_.files.size(), 2u);
  EXPECT_TRUE(table_.IsForgotten(job(), 1));
  EXPECT_FALSE(table_.IsForgotten(job(), 2));
  EXPECT_THAT(Accept(BatchOf(1)).status().message(),
              HasSubstr("larger attempt"));
  EXPECT_THAT(Accept(BatchOf(106)).status().message(),
              HasSubstr("at most 105"));
  EXPECT_EQ(Accept(BatchOf(5)).value(), true);
  StepBatch other = BatchOf(5);
  other.content = {99, 99};
  EXPECT_TRUE(absl::IsAlreadyExists(Accept(other).status()));
}

TEST_F(JobTableTest, AnAttemptDropsAllStepsAndIsToBeSaved) {
  ASSERT_THAT(Accept(BatchOf(50)).status(), IsOk());
  Make(1000, true);
  job().attempt_saved = true;
  ASSERT_THAT(Accept(BatchOf(3, 1)).status(), IsOk());
  EXPECT_FALSE(job().attempt_saved);
  EXPECT_EQ(job().steps.size(), 1u);
  EXPECT_EQ(table_.plan_bytes(), Bytes(0));
  EXPECT_TRUE(absl::IsFailedPrecondition(Accept(BatchOf(51)).status()));
}

TEST_F(JobTableTest, PlansThatRanksHaveStillToFetchGiveWayToDiskOnly) {
  ASSERT_THAT(Accept(BatchOf(0)).status(), IsOk());
  Make(60'000, /*durable=*/false);
  ASSERT_THAT(Accept(BatchOf(1)).status(), IsOk());
  Make(60'000, /*durable=*/true);
  table_.EvictToLimit(calls_, &gone_);
  EXPECT_TRUE(std::holds_alternative<PlanPtr>(*OutcomeOf(0)));
  ASSERT_TRUE(std::holds_alternative<OnDisk>(*OutcomeOf(1)));
  Fingerprint checksum;
  EXPECT_NE(table_.FindOnDisk(KeyOf(1), &checksum), nullptr);
  EXPECT_EQ(checksum, (Fingerprint{7, 7}));
  EXPECT_EQ(table_.FindOnDisk(KeyOf(0), &checksum), nullptr);
  // A step that all ranks have is dropped, and stays so.
  Fetch(0);
  EXPECT_EQ(JobTable::PassedBy(job()), 0);
  ASSERT_THAT(Accept(BatchOf(2)).status(), IsOk());
  Make(60'000, /*durable=*/false);
  table_.EvictToLimit(calls_, &gone_);
  EXPECT_TRUE(table_.IsForgotten(job(), 0));
  EXPECT_TRUE(absl::IsNotFound(Accept(BatchOf(0)).status()));
  EXPECT_EQ(table_.plan_bytes(), Bytes(60'000));
}

TEST_F(JobTableTest,
       PlansThatAllRanksHaveFetchedTakeLittleOnceTheyAreReported) {
  JobTable::Limits limits{.plan_bytes = Bytes(100'000)};
  limits.passed_bytes = Bytes(25'000);
  limits.reported_steps = 2;
  JobTable table(limits);
  Job job(served_);
  job.files = std::make_shared<JobFiles>(nullptr, "job");
  Job& added = table.Add("job", std::move(job));
  const auto ranks = static_cast<int32_t>(served_->spec().parallel.pp);
  for (int64_t step = 0; step < 10; ++step) {
    Submission submission{.job = served_};
    ASSERT_THAT(
        table.Accept("job", {0}, BatchOf(step), calls_, &submission, &gone_)
            .status(),
        IsOk());
    const PlanKey key{"job", step, 0, 0};
    auto plan = std::make_shared<ReadyPlan>();
    plan->size = Bytes(10'000);
    table.SetOutcome(0, PlanPtr(plan), &added,
                     table.FindStep(key, submission.batch));
    table.EvictToLimit(calls_, &gone_);
    if (step >= 6) continue;  // The others are not fetched.
    for (int32_t r = 0; r < ranks; ++r) JobTable::NoteFetch(key, r, &added);
  }
  // The times of steps 4 and 5 are still reported.
  EXPECT_EQ(table.plan_bytes(), Bytes(60'000));
  EXPECT_TRUE(table.IsForgotten(added, 3));
  EXPECT_FALSE(table.IsForgotten(added, 4));
  // Beyond the limit of all plans they are given up.
  Step& last = added.steps.rbegin()->second;
  auto large = std::make_shared<ReadyPlan>();
  large->size = Bytes(50'000);
  table.SetOutcome(1, PlanPtr(large), &added, &last);
  table.EvictToLimit(calls_, &gone_);
  EXPECT_EQ(table.plan_bytes(), Bytes(100'000));
  EXPECT_TRUE(table.IsForgotten(added, 4));
  EXPECT_FALSE(table.IsForgotten(added, 5));
}

TEST_F(JobTableTest, APlanThatACallWaitsForStaysInMemory) {
  for (int64_t step = 0; step < 2; ++step) {
    ASSERT_THAT(Accept(BatchOf(step)).status(), IsOk());
    Make(60'000, /*durable=*/true);
  }
  calls_.Add({.key = KeyOf(1), .done = {}});
  table_.EvictToLimit(calls_, &gone_);
  EXPECT_TRUE(std::holds_alternative<OnDisk>(*OutcomeOf(0)));
  EXPECT_TRUE(std::holds_alternative<PlanPtr>(*OutcomeOf(1)));
}

TEST_F(JobTableTest, WhatIsExpectedCountsUntilItIsMade) {
  ASSERT_THAT(Accept(BatchOf(0), 10).status(), IsOk());
  const Bytes expected = job().plan_bytes;
  EXPECT_GT(expected, Bytes(4096));
  Make(1000, false);
  EXPECT_EQ(job().plan_bytes, Bytes(1000));
  // A batch that finds no room while step 0 is not fetched waits.
  const absl::Status busy = Accept(BatchOf(1), 1'000'000).status();
  EXPECT_TRUE(absl::IsResourceExhausted(busy));
  EXPECT_THAT(busy.message(), HasSubstr("step 0 is the first of them"));
  EXPECT_EQ(table_.Remove("job", &gone_).mapped().plan_bytes, Bytes(0));
  EXPECT_EQ(table_.plan_bytes(), Bytes(0));
}

}  // namespace
}  // namespace pipeloom::service
