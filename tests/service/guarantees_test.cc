// Tests of the guarantees of docs/service.md with a real server.
#include <google/protobuf/util/message_differencer.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/execution_plan.h"
#include "proto/convert/plan_proto.h"
#include "service/core/planner_core.h"
#include "tests/service/service_fixture.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

TEST(GuaranteesTest, SharesOfAllRanksAreTheWholeCheckedPlan) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 7)).ok());
  for (int32_t replica = 0; replica < 2; ++replica) {
    v1::GetPlanResponse whole;
    ASSERT_TRUE(service.GetWhole(job, 0, replica, &whole).ok());
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         convert::FromProto(whole.plan()));
    EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
    std::set<int32_t> tasks;
    std::set<int32_t> edges;
    for (int32_t rank = 0; rank < plan.graph.num_ranks(); ++rank) {
      v1::RankPlan share;
      ASSERT_TRUE(service.Get(job, 0, replica, rank, &share).ok());
      EXPECT_TRUE(MessageDifferencer::Equals(share.program(),
                                             whole.plan().programs(rank)));
      EXPECT_TRUE(MessageDifferencer::Equals(share.plan_checksum(),
                                             whole.plan().checksum()));
      EXPECT_TRUE(MessageDifferencer::Equals(share.rank_spec(),
                                             whole.plan().graph().ranks(rank)));
      for (const v1::IndexedTask& t : share.tasks()) {
        EXPECT_TRUE(tasks.insert(t.index()).second);
        EXPECT_TRUE(MessageDifferencer::Equals(
            t.task(), whole.plan().graph().tasks(t.index())));
      }
      for (const v1::IndexedEdge& e : share.edges()) {
        edges.insert(e.index());
        EXPECT_TRUE(e.from_rank() == rank || e.to_rank() == rank);
        EXPECT_TRUE(MessageDifferencer::Equals(
            e.edge(), whole.plan().graph().edges(e.index())));
      }
    }
    EXPECT_EQ(tasks.size(), static_cast<size_t>(plan.graph.num_tasks()));
    EXPECT_EQ(edges.size(), static_cast<size_t>(plan.graph.num_edges()));
  }
}

TEST(GuaranteesTest, EverySampleIsInTheStepOnceAndLossWeightsAddUpToOne) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  // More than the job's 2 x 8 microbatches hold: the step grows.
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 3, 400)).ok());
  std::multiset<int64_t> samples;
  double weight = 0;
  std::string step_sum;
  for (int32_t replica = 0; replica < 2; ++replica) {
    v1::RankPlan share;
    ASSERT_TRUE(service.Get(job, 0, replica, 0, &share).ok());
    for (const v1::PlannedMicrobatch& m : share.microbatches()) {
      weight += m.loss_weight();
      for (const v1::PlannedSample& s : m.samples()) {
        if (!s.has_piece()) samples.insert(s.sample());
      }
    }
    const std::string sum = share.step_checksum().SerializeAsString();
    if (replica == 0) step_sum = sum;
    EXPECT_EQ(sum, step_sum) << "replicas do not agree";
  }
  EXPECT_NEAR(weight, 1, 1e-9);
  EXPECT_GT(samples.size(), 300u);
  for (const int64_t s : samples) EXPECT_EQ(samples.count(s), 1u) << s;
}

TEST(GuaranteesTest, TheTrainersOwnMicrobatchesAreKept) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  v1::SubmitBatchRequest request = SmallBatch(job, 0, 3, 6);
  request.set_replica(1);
  for (const int32_t m : {2, 0, 1, 1, 0, 2}) request.add_microbatch_of(m);
  ASSERT_TRUE(service.Submit(request).ok());
  v1::RankPlan share;
  ASSERT_TRUE(service.Get(job, 0, 1, 0, &share).ok());
  ASSERT_EQ(share.microbatches_size(), 3);
  const int64_t expected[3][2] = {{1, 4}, {2, 3}, {0, 5}};
  for (int m = 0; m < 3; ++m) {
    ASSERT_EQ(share.microbatches(m).samples_size(), 2);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(share.microbatches(m).samples(i).sample(), expected[m][i]);
    }
  }
}

TEST(GuaranteesTest, TheSameRequestGetsTheSameAnswer) {
  TestService service;
  v1::OpenJobResponse first;
  v1::OpenJobResponse second;
  ASSERT_TRUE(service.Open(SmallJobRequest(), &first).ok());
  ASSERT_TRUE(service.Open(SmallJobRequest(), &second).ok());
  EXPECT_FALSE(first.existed());
  EXPECT_TRUE(second.existed());
  EXPECT_EQ(first.job_id(), second.job_id());
  EXPECT_TRUE(
      MessageDifferencer::Equals(first.partition(), second.partition()));

  const v1::SubmitBatchRequest batch = SmallBatch(first.job_id(), 0, 5);
  v1::SubmitBatchResponse submitted;
  ASSERT_TRUE(service.Submit(batch, &submitted).ok());
  EXPECT_FALSE(submitted.existed());
  v1::RankPlan one;
  ASSERT_TRUE(service.Get(first.job_id(), 0, 0, 1, &one).ok());
  ASSERT_TRUE(service.Submit(batch, &submitted).ok());
  EXPECT_TRUE(submitted.existed());
  v1::RankPlan two;
  ASSERT_TRUE(service.Get(first.job_id(), 0, 0, 1, &two).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(one, two));
}

TEST(GuaranteesTest, AKeyThatIsTakenByOtherContentIsRefused) {
  TestService service;
  v1::OpenJobRequest open = SmallJobRequest();
  open.set_job_id("mine");
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  EXPECT_EQ(opened.job_id(), "mine");
  const grpc::Status other_samples = [&] {
    v1::OpenJobRequest other = open;
    other.mutable_sample()->mutable_samples()->RemoveLast();
    return service.Open(other, &opened);
  }();
  EXPECT_EQ(other_samples.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(other_samples.error_message(), HasSubstr("its sample,"));
  open.mutable_job()->mutable_training()->set_microbatches(3);
  const grpc::Status other_job = service.Open(open, &opened);
  EXPECT_EQ(other_job.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(other_job.error_message(), HasSubstr("its model, cluster,"));

  ASSERT_TRUE(service.Submit(SmallBatch("mine", 0, 5)).ok());
  EXPECT_EQ(service.Submit(SmallBatch("mine", 0, 6)).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  v1::SubmitBatchRequest one_replica = SmallBatch("mine", 0, 5);
  one_replica.set_replica(0);
  EXPECT_EQ(service.Submit(one_replica).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
}

TEST(GuaranteesTest, ADeadlineGetsTheBestSoFarAndItStays) {
  TestService service;
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  // Far beyond what any caller waits.
  open.mutable_job()->mutable_search()->set_deadline_us(600e6);
  // So short that no answer meets its bound.
  open.mutable_job()->mutable_training()->set_memory_limit_bytes(2'000'000'000);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  const std::string job = opened.job_id();
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 9, 64)).ok());
  v1::RankPlan share;
  const grpc::Status status =
      service.Get(job, 0, 0, 0, &share, std::chrono::milliseconds(3000));
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(share.quality(), v1::PLAN_QUALITY_BEST_SO_FAR);
  v1::RankPlan other;
  ASSERT_TRUE(service.Get(job, 0, 0, 3, &other).ok());
  EXPECT_TRUE(
      MessageDifferencer::Equals(share.plan_checksum(), other.plan_checksum()));
}

TEST(GuaranteesTest, AFetchMayComeBeforeItsBatch) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  grpc::Status status;
  v1::RankPlan share;
  {
    std::jthread waiter([&] { status = service.Get(job, 4, 0, 0, &share); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ASSERT_TRUE(service.Submit(SmallBatch(job, 4, 2)).ok());
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(share.step(), 4);
}

TEST(GuaranteesTest, AFetchWithoutABatchEndsAtItsDeadline) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  v1::RankPlan share;
  EXPECT_EQ(service.Get(job, 0, 0, 0, &share, std::chrono::milliseconds(200))
                .error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

// A trainer that went on without plans must not wait behind those it missed.
TEST(GuaranteesTest, AStepThatIsWaitedForGoesBeforeThoseThatNobodyAsksFor) {
  service::ServerOptions options = TestOptions();
  options.core.threads = 1;
  TestService service(options);
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  open.mutable_job()->mutable_search()->set_deadline_us(200e3);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  const std::string job = opened.job_id();
  constexpr int64_t kLast = 15;
  for (int64_t step = 0; step <= kLast; ++step) {
    ASSERT_TRUE(
        service.Submit(SmallBatch(job, step, static_cast<uint64_t>(step), 64))
            .ok());
  }
  v1::RankPlan share;
  ASSERT_TRUE(service.Get(job, kLast, 0, 0, &share).ok());
  v1::SubmitBatchResponse response;
  ASSERT_TRUE(
      service.Submit(SmallBatch(job, kLast + 1, 99, 64), &response).ok());
  EXPECT_GT(response.queued(), kLast / 2);
}

TEST(GuaranteesTest, AnEqualStepIsNotSearchedAgain) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  v1::GetPlanResponse first;
  ASSERT_TRUE(service.GetWhole(job, 0, 0, &first).ok());
  ASSERT_TRUE(service.Submit(SmallBatch(job, 1, 5)).ok());
  v1::GetPlanResponse second;
  ASSERT_TRUE(service.GetWhole(job, 1, 0, &second).ok());
  EXPECT_GT(first.evaluations(), 0);
  EXPECT_EQ(second.evaluations(), 0);
  EXPECT_EQ(second.plan().step(), 1);
  for (int r = 0; r < first.plan().programs_size(); ++r) {
    EXPECT_TRUE(MessageDifferencer::Equals(first.plan().programs(r),
                                           second.plan().programs(r)));
  }
}

TEST(GuaranteesTest, OldStepsAreForgottenAndSaidToBe) {
  service::ServerOptions options = TestOptions();
  options.core.keep_steps = 3;
  TestService service(std::move(options));
  const std::string job = service.OpenSmallJob(1, 5);
  v1::RankPlan share;
  for (int64_t step = 0; step < 6; ++step) {
    ASSERT_TRUE(service.Submit(SmallBatch(job, step, 5)).ok());
    ASSERT_TRUE(service.Get(job, step, 0, 0, &share).ok());
  }
  EXPECT_TRUE(service.Get(job, 3, 0, 0, &share).ok());
  const grpc::Status gone = service.Get(job, 2, 0, 0, &share);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(gone.error_message(), HasSubstr("not kept any more"));
  EXPECT_EQ(service.Submit(SmallBatch(job, 1, 5)).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(GuaranteesTest, ARestartServesTheSamePlansAndGoesOn) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  // A deadline in time, so that planning again would give other plans.
  v1::OpenJobRequest open = SmallJobRequest(2, 0);
  open.mutable_job()->mutable_search()->set_deadline_us(20e3);
  std::string job;
  std::string before[2];
  {
    TestService service(options);
    v1::OpenJobResponse opened;
    ASSERT_TRUE(service.Open(open, &opened).ok());
    job = opened.job_id();
    ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
    for (int32_t r = 0; r < 2; ++r) {
      v1::RankPlan share;
      ASSERT_TRUE(service.Get(job, 0, r, 2, &share).ok());
      EXPECT_TRUE(share.durable());
      before[r] = share.SerializeAsString();
    }
    // Accepted, and perhaps not planned before the end.
    ASSERT_TRUE(service.Submit(SmallBatch(job, 1, 6)).ok());
  }
  TestService service(options);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  EXPECT_TRUE(opened.existed());
  EXPECT_EQ(opened.job_id(), job);
  for (int32_t r = 0; r < 2; ++r) {
    v1::RankPlan share;
    ASSERT_TRUE(service.Get(job, 0, r, 2, &share).ok());
    EXPECT_EQ(share.SerializeAsString(), before[r]);
    EXPECT_TRUE(service.Get(job, 1, r, 2, &share).ok());
  }
}

TEST(GuaranteesTest, ADamagedPlanIsToldAndMadeAnew) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  std::string job;
  v1::RankPlan before;
  {
    TestService service(options);
    job = service.OpenSmallJob(1);
    ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
    ASSERT_TRUE(service.Get(job, 0, 0, 0, &before).ok());
  }
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           absl::StrCat(folder.path(), "/jobs/", job, "/plans"))) {
    std::filesystem::resize_file(entry.path(),
                                 std::filesystem::file_size(entry.path()) / 2);
    ++damaged;
  }
  ASSERT_EQ(damaged, 1);
  TestService service(options);
  v1::RankPlan after;
  ASSERT_TRUE(service.Get(job, 0, 0, 0, &after).ok());
  // With a budget in evaluations, the search gives the same plan again.
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
}

TEST(GuaranteesTest, ADiskThatDoesNotTakeAPlanDelaysNobody) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  TestService service(std::move(options));
  const std::string job = service.OpenSmallJob(1);
  // Where the folder of plans would be.
  std::ofstream(absl::StrCat(folder.path(), "/jobs/", job, "/plans")) << "x";
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  v1::RankPlan share;
  ASSERT_TRUE(service.Get(job, 0, 0, 0, &share).ok());
  EXPECT_FALSE(share.durable());
}

TEST(GuaranteesTest, AFolderServesOneServiceAtATime) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  TestService service(options);
  EXPECT_THAT(service::Server::Start(options),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("in use by another process")));
}

TEST(GuaranteesTest, StoppingFinishesWhatIsWaitedFor) {
  TestService service;
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  open.mutable_job()->mutable_search()->set_deadline_us(600e6);
  // So short that no answer meets its bound.
  open.mutable_job()->mutable_training()->set_memory_limit_bytes(2'000'000'000);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  ASSERT_TRUE(service.Submit(SmallBatch(opened.job_id(), 0, 9, 64)).ok());
  grpc::Status status;
  v1::RankPlan share;
  {
    std::jthread waiter(
        [&] { status = service.Get(opened.job_id(), 0, 0, 0, &share); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    service.server().Stop(std::chrono::seconds(20));
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(share.quality(), v1::PLAN_QUALITY_BEST_SO_FAR);
}

// Its batch would be refused.
TEST(GuaranteesTest, StoppingDoesNotWaitForACallWhoseBatchHasNotCome) {
  service::Log log(service::LogLevel::kOff, nullptr);
  service::Metrics metrics;
  std::promise<absl::Status> answer;
  ASSERT_OK_AND_ASSIGN(
      const auto core,
      service::PlannerCore::Create(TestOptions().core, &log, &metrics));
  ASSERT_OK_AND_ASSIGN(const v1::OpenJobResponse opened,
                       core->OpenJob(SmallJobRequest()));
  const auto begin = service::PlannerCore::Clock::now();
  ASSERT_NE(core->Await({opened.job_id(), 7}, 0, begin + std::chrono::hours(1),
                        [&](const service::PlanOrError& plan) {
                          answer.set_value(plan.status());
                        }),
            0);
  core->Drain(std::chrono::seconds(30));
  EXPECT_LT(service::PlannerCore::Clock::now() - begin,
            std::chrono::seconds(30));
  std::future<absl::Status> status = answer.get_future();
  ASSERT_EQ(status.wait_for(std::chrono::seconds(30)),
            std::future_status::ready);
  EXPECT_THAT(status.get(), FailsWith(absl::StatusCode::kUnavailable,
                                      HasSubstr("the service is going down")));
}

}  // namespace
}  // namespace pipeloom::testing
