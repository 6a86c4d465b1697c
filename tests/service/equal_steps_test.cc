// Equal steps: one search serves all of them, and no step gets the plan of a
// replica on other devices.
#include <google/protobuf/util/message_differencer.h>

#include <array>
#include <chrono>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/jobs/ready_plan.h"
#include "service/jobs/served_job.h"
#include "service/jobs/step_batch.h"
#include "tests/service/service_fixture.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::google::protobuf::util::MessageDifferencer;

constexpr int32_t kReplicas = 3;

// Returns the batch of one replica, the same for all of them.
v1::SubmitBatchRequest BatchOf(const std::string& job, int64_t step,
                               int32_t replica) {
  v1::SubmitBatchRequest request = SmallBatch(job, step, 9, 64);
  request.set_replica(replica);
  return request;
}

bool SamePrograms(const v1::GetPlanResponse& a, const v1::GetPlanResponse& b) {
  if (a.plan().programs_size() != b.plan().programs_size()) return false;
  for (int r = 0; r < a.plan().programs_size(); ++r) {
    if (!MessageDifferencer::Equals(a.plan().programs(r),
                                    b.plan().programs(r))) {
      return false;
    }
  }
  return true;
}

TEST(EqualStepsTest, ReplicasWithEqualBatchesAreSearchedOnceAlsoAtATime) {
  service::ServerOptions options = TestOptions();
  options.core.threads = kReplicas;
  TestService service(std::move(options));
  const std::string job = service.OpenSmallJob(kReplicas, 4000);
  for (int64_t step = 0; step < 2; ++step) {
    for (int32_t r = 0; r < kReplicas; ++r) {
      ASSERT_TRUE(service.Submit(BatchOf(job, step, r)).ok());
    }
  }
  int searched = 0;
  std::array<v1::GetPlanResponse, kReplicas> plans;
  for (int64_t step = 0; step < 2; ++step) {
    for (int32_t r = 0; r < kReplicas; ++r) {
      v1::GetPlanResponse& plan = plans[static_cast<size_t>(r)];
      ASSERT_TRUE(service.GetWhole(job, step, r, &plan).ok());
      searched += plan.evaluations() > 0 ? 1 : 0;
      EXPECT_EQ(plan.quality(), plans[0].quality());
      EXPECT_TRUE(SamePrograms(plan, plans[0])) << step << ", " << r;
    }
  }
  EXPECT_EQ(searched, 1);
}

// One that begins meanwhile ends at once, and gives the better plan.
TEST(EqualStepsTest, ASearchThatADeadlineCutsServesAllEqualReplicas) {
  service::ServerOptions options = TestOptions();
  options.core.threads = 1;
  TestService service(std::move(options));
  v1::OpenJobRequest open = SmallJobRequest(kReplicas, 0);
  // Far beyond what any caller waits.
  open.mutable_job()->mutable_search()->set_deadline_us(600e6);
  // So short that no answer meets its bound.
  open.mutable_job()->mutable_training()->set_memory_limit_bytes(2'000'000'000);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  const std::string job = opened.job_id();
  for (int32_t r = 0; r < kReplicas; ++r) {
    ASSERT_TRUE(service.Submit(BatchOf(job, 0, r)).ok());
  }
  std::array<grpc::Status, kReplicas> statuses;
  {
    std::vector<std::jthread> callers;
    for (int32_t r = 0; r < kReplicas; ++r) {
      callers.emplace_back([&, r] {
        v1::RankPlan share;
        grpc::ClientContext context;
        service.Prepare(&context, std::chrono::milliseconds(5000));
        v1::GetRankPlanRequest request;
        request.set_job_id(job);
        request.set_replica(r);
        statuses[static_cast<size_t>(r)] =
            service.stub().GetRankPlan(&context, request, &share);
      });
    }
  }
  std::array<v1::GetPlanResponse, kReplicas> plans;
  for (int32_t r = 0; r < kReplicas; ++r) {
    ASSERT_TRUE(statuses[static_cast<size_t>(r)].ok())
        << statuses[static_cast<size_t>(r)].error_message();
    v1::GetPlanResponse& plan = plans[static_cast<size_t>(r)];
    ASSERT_TRUE(service.GetWhole(job, 0, r, &plan).ok());
    EXPECT_EQ(plan.quality(), v1::PLAN_QUALITY_BEST_SO_FAR);
    EXPECT_TRUE(SamePrograms(plan, plans[0])) << r;
  }
}

// The second search has a nanosecond.
TEST(EqualStepsTest,
     AFullSearchGivesThePlanOfOneThatWasCutShortIfThatIsFaster) {
  JobSpec spec = SmallVlmJob();
  // So short that no answer meets its bound.
  spec.training.memory_limit = Bytes(2'000'000'000);
  spec.search.deadline = Seconds(600);
  ASSERT_OK_AND_ASSIGN(const auto job, service::ServedJob::Create(
                                           "job", spec, RandomBatch(1, 32, 2),
                                           std::nullopt, {}));
  ASSERT_OK_AND_ASSIGN(service::StepBatch batch,
                       service::MakeStepBatch(*job, BatchOf("job", 0, 0), {}));
  batch.epoch = job->MakeEpoch({});
  service::PlanCache cache(Bytes(int64_t{1} << 30));
  std::stop_source stop;
  const std::jthread stopper([&](const std::stop_token& end) {
    for (int i = 0; i < 200 && !end.stop_requested(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    stop.request_stop();
  });
  ASSERT_OK_AND_ASSIGN(
      const service::ReadyPlan cut,
      service::MakeReadyPlan(*job, batch, 0, {.most = std::chrono::hours(1)},
                             stop.get_token(), &cache));
  ASSERT_EQ(cut.quality, v1::PLAN_QUALITY_BEST_SO_FAR);
  ASSERT_OK_AND_ASSIGN(
      const service::ReadyPlan full,
      service::MakeReadyPlan(
          *job, batch, 0, {.most = std::chrono::nanoseconds(1)}, {}, &cache));
  EXPECT_EQ(full.quality, v1::PLAN_QUALITY_FULL);
  EXPECT_FALSE(full.statistics.cache_hit());
  EXPECT_EQ(full.checksum, cut.checksum);
  // For a search that has to be short, an equal one that was cut short does.
  service::PlanCache other(Bytes(int64_t{1} << 30));
  ASSERT_OK_AND_ASSIGN(
      const service::ReadyPlan shortened,
      service::MakeReadyPlan(
          *job, batch, 0, {.most = std::chrono::seconds(10), .part = 1.0 / 64},
          {}, &other));
  EXPECT_EQ(shortened.quality, v1::PLAN_QUALITY_BEST_SO_FAR);
  EXPECT_FALSE(shortened.statistics.cache_hit());
  ASSERT_OK_AND_ASSIGN(
      const service::ReadyPlan found,
      service::MakeReadyPlan(*job, batch, 0,
                             {.most = std::chrono::hours(1), .part = 1.0 / 64},
                             {}, &other));
  EXPECT_EQ(found.quality, v1::PLAN_QUALITY_BEST_SO_FAR);
  EXPECT_TRUE(found.statistics.cache_hit());
  EXPECT_EQ(found.checksum, shortened.checksum);
  // From now on it is the plan of equal steps.
  ASSERT_OK_AND_ASSIGN(
      const service::ReadyPlan again,
      service::MakeReadyPlan(*job, batch, 0, {.most = std::chrono::hours(1)},
                             {}, &cache));
  EXPECT_TRUE(again.statistics.cache_hit());
  EXPECT_EQ(again.checksum, cut.checksum);
}

// Replica 1 has a slow GPU, and its work is that of replica 0.
TEST(EqualStepsTest, AReplicaOnOtherDevicesGetsAPlanOfItsOwn) {
  service::ServerOptions options = TestOptions();
  options.core.threads = 1;
  TestService service(std::move(options));
  v1::OpenJobRequest open = SmallJobRequest(2, 50);
  v1::SlowGpu& slow =
      *open.mutable_job()->mutable_cluster_spec()->add_slow_gpus();
  slow.set_gpu(5);  // Rank 1 of replica 1.
  slow.set_factor(2);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  v1::SubmitBatchRequest batch;
  batch.set_job_id(opened.job_id());
  // A microbatch each, those of both replicas in turn.
  for (const int64_t text : {2000, 2000, 1900, 1900, 1800, 1800}) {
    batch.mutable_batch()->add_samples()->set_text_tokens(text);
  }
  ASSERT_TRUE(service.Submit(batch).ok());
  v1::GetPlanResponse plans[2];
  int64_t busy[2] = {};
  for (int32_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(service.GetWhole(opened.job_id(), 0, r, &plans[r]).ok());
    EXPECT_GT(plans[r].evaluations(), 0) << r;
    for (const v1::Task& task : plans[r].plan().graph().tasks()) {
      if (task.rank() == 1) busy[r] += task.duration_ns();
    }
  }
  EXPECT_NEAR(static_cast<double>(busy[1]), 2 * static_cast<double>(busy[0]),
              0.01 * static_cast<double>(busy[0]));
}

}  // namespace
}  // namespace pipeloom::testing
