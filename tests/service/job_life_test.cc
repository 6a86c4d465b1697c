// How a job goes on over attempts, evictions of its plans and abandonment: one
// plan for all ranks of a step, whatever happens.
//
// PIPELOOM_MANY_REPLICAS=1 adds 128 replicas of dip-vlm-xl, four steps ahead.
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "tests/service/service_fixture.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

grpc::Status Close(TestService& service, const std::string& job,
                   const std::string& key = "") {
  grpc::ClientContext context;
  service.Prepare(&context, seconds(60));
  v1::CloseJobRequest request;
  request.set_job_id(job);
  request.set_close_key(key);
  v1::CloseJobResponse response;
  return service.stub().CloseJob(&context, request, &response);
}

v1::ListJobsResponse List(TestService& service) {
  grpc::ClientContext context;
  service.Prepare(&context, seconds(60));
  v1::ListJobsResponse response;
  EXPECT_TRUE(service.stub().ListJobs(&context, {}, &response).ok());
  return response;
}

grpc::Status GetOf(TestService& service, const std::string& job,
                   int64_t attempt, int64_t step, v1::RankPlan* share,
                   milliseconds deadline = seconds(60)) {
  grpc::ClientContext context;
  service.Prepare(&context, deadline);
  v1::GetRankPlanRequest request;
  request.set_job_id(job);
  request.set_step(step);
  request.set_attempt(attempt);
  return service.stub().GetRankPlan(&context, request, share);
}

v1::SubmitBatchRequest BatchOf(const std::string& job, int64_t attempt,
                               int64_t step) {
  v1::SubmitBatchRequest batch = SmallBatch(
      job, step, static_cast<uint64_t>(1000 * attempt + step + 1), 12);
  batch.set_attempt(attempt);
  return batch;
}

TEST(AttemptTest, ATrainingThatGoesBackGetsPlansAgain) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  options.core.keep_steps = 4;
  std::string job;
  v1::RankPlan share;
  {
    TestService service(options);
    job = service.OpenSmallJob(1, 5);
    for (int64_t step = 0; step < 12; ++step) {
      ASSERT_TRUE(service.Submit(BatchOf(job, 0, step)).ok());
      ASSERT_TRUE(GetOf(service, job, 0, step, &share).ok());
    }
    // Back at step 2, without and with a new attempt.
    const grpc::Status late = service.Submit(BatchOf(job, 0, 2));
    EXPECT_EQ(late.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(late.error_message(), HasSubstr("larger attempt than 0"));
    // A rank of the new attempt may ask before its first batch is there.
    grpc::Status early;
    v1::RankPlan first;
    {
      std::jthread waiter([&] { early = GetOf(service, job, 1, 11, &first); });
      std::this_thread::sleep_for(milliseconds(50));
      ASSERT_TRUE(service.Submit(BatchOf(job, 1, 2)).ok());
      ASSERT_TRUE(service.Submit(BatchOf(job, 1, 11)).ok());
    }
    EXPECT_TRUE(early.ok()) << early.error_message();
    EXPECT_EQ(first.attempt(), 1);
    ASSERT_TRUE(GetOf(service, job, 1, 11, &share).ok());
    // Ranks of the old attempt are told.
    EXPECT_EQ(GetOf(service, job, 0, 11, &share).error_code(),
              grpc::StatusCode::FAILED_PRECONDITION);
    const grpc::Status old = service.Submit(BatchOf(job, 0, 12));
    EXPECT_EQ(old.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(old.error_message(), HasSubstr("attempt 1 of job " + job));
    EXPECT_THAT(old.error_message(),
                HasSubstr("give each run a job_id of its own"));
  }
  TestService service(options);
  const std::string before = share.SerializeAsString();
  ASSERT_TRUE(GetOf(service, job, 1, 11, &share).ok());
  EXPECT_EQ(share.SerializeAsString(), before);
  EXPECT_EQ(List(service).jobs(0).attempt(), 1);
  EXPECT_EQ(List(service).jobs(0).newest_step(), 11);
}

TEST(AttemptTest, WaitsOfTheOldAttemptEnd) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  grpc::Status status;
  {
    std::jthread waiter([&] {
      v1::RankPlan share;
      status = GetOf(service, job, 0, 3, &share);
    });
    std::this_thread::sleep_for(milliseconds(50));
    ASSERT_TRUE(service.Submit(BatchOf(job, 2, 0)).ok());
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(JobLifeTest, MediaThatNoModuleTakesAreNotedOnceAJob) {
  std::string log;
  service::ServerOptions options = TestOptions();
  options.log_level = service::LogLevel::kWarning;
  options.log = [&log](absl::string_view line) {
    log.append(line.data(), line.size());
  };
  TestService service(options);
  const std::string job = service.OpenSmallJob(1, 5);
  ASSERT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  EXPECT_EQ(service.trailer("note-bin"), "");
  EXPECT_EQ(log, "");
  for (int64_t step = 1; step < 4; ++step) {
    v1::SubmitBatchRequest batch = SmallBatch(job, step, 5);
    batch.mutable_batch()->mutable_samples(0)->add_audio_seconds(3);
    batch.mutable_batch()->mutable_samples(2)->add_audio_seconds(2);
    batch.mutable_batch()->mutable_samples(2)->add_videos()->set_frames(8);
    // Again, too: the answer may have been lost.
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(service.Submit(batch).ok());
      EXPECT_EQ(service.trailer("note-bin"),
                absl::StrCat("1 sample has videos and 2 samples have audio "
                             "in step ",
                             step,
                             ", which no module of model small-vlm takes: they "
                             "are planned without"));
    }
  }
  EXPECT_THAT(log, HasSubstr("\"event\": \"unused_media\", \"job\": \"" + job));
  EXPECT_THAT(log, HasSubstr("2 samples have audio in step 1,"));
  EXPECT_EQ(log.find("unused_media"), log.rfind("unused_media"));
}

TEST(JobLifeTest, AStepFarAheadIsRefusedAndDropsNoPlan) {
  TestService service;
  const std::string job = service.OpenSmallJob(1);
  ASSERT_TRUE(service.Submit(SmallBatch(job, 7, 5)).ok());
  v1::RankPlan share;
  ASSERT_TRUE(service.Get(job, 7, 0, 0, &share).ok());
  const grpc::Status far = service.Submit(SmallBatch(job, int64_t{1} << 40, 6));
  EXPECT_EQ(far.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(far.error_message(), HasSubstr("step is 1099511627776"));
  EXPECT_TRUE(service.Get(job, 7, 0, 1, &share).ok());
  // A training that went on alone for a while comes back.
  EXPECT_TRUE(service.Submit(SmallBatch(job, 20'000, 6)).ok());
}

TEST(JobLifeTest, AnAbandonedJobGivesWayToANewOne) {
  service::ServerOptions options = TestOptions();
  options.core.max_jobs = 2;
  std::atomic<int> minutes = 0;
  const auto begin = std::chrono::steady_clock::now();
  options.core.now = [&] { return begin + std::chrono::minutes(minutes); };
  TestService service(options);
  const auto open = [&](const std::string& id) {
    v1::OpenJobRequest request = SmallJobRequest(1);
    request.set_job_id(id);
    v1::OpenJobResponse response;
    return service.Open(request, &response);
  };
  ASSERT_TRUE(open("first").ok());
  ASSERT_TRUE(open("second").ok());
  const grpc::Status full = open("third");
  EXPECT_EQ(full.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("--max-jobs"));
  minutes = 61;  // More than idle_time.
  // "first" is used again, so "second" is the abandoned one.
  ASSERT_TRUE(service.Submit(SmallBatch("first", 0, 1)).ok());
  ASSERT_TRUE(open("third").ok());
  const v1::ListJobsResponse jobs = List(service);
  ASSERT_EQ(jobs.jobs_size(), 2);
  EXPECT_EQ(jobs.jobs(0).job_id(), "first");
  EXPECT_EQ(jobs.jobs(0).newest_step(), 0);
  EXPECT_EQ(jobs.jobs(0).num_replicas(), 1);
  EXPECT_EQ(jobs.jobs(1).job_id(), "third");
  EXPECT_EQ(jobs.jobs(1).newest_step(), -1);
}

TEST(JobLifeTest, OnlyWhoHasTheKeyClosesAJob) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  v1::OpenJobRequest open = SmallJobRequest(1);
  open.set_job_id("mine");
  open.set_close_key("secret");
  v1::OpenJobResponse opened;
  {
    TestService service(options);
    ASSERT_TRUE(service.Open(open, &opened).ok());
  }
  TestService service(options);  // The key outlives a restart.
  EXPECT_TRUE(List(service).jobs(0).has_close_key());
  EXPECT_EQ(Close(service, "mine").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Close(service, "mine", "guess").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  open.set_close_key("guess");
  EXPECT_EQ(service.Open(open, &opened).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  open.clear_close_key();
  EXPECT_TRUE(service.Open(open, &opened).ok());
  EXPECT_TRUE(Close(service, "mine", "secret").ok());
  EXPECT_EQ(List(service).jobs_size(), 0);
}

// Submits and fetches at random, by ranks of which some are behind. All ranks
// must get the same plan for a step.
void RunRandomly(uint64_t seed, bool with_state) {
  SCOPED_TRACE(::testing::Message()
               << "seed " << seed << (with_state ? ", state" : ""));
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  if (with_state) options.core.state_dir = folder.path();
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  // With a deadline in time, a plan that is made twice would differ.
  open.mutable_job()->mutable_search()->set_deadline_us(2e3);
  open.set_job_id("job");
  v1::OpenJobResponse opened;
  {
    TestService service(options);
    ASSERT_TRUE(service.Open(open, &opened).ok());
    ASSERT_TRUE(service.Submit(SmallBatch("job", 0, 1, 48)).ok());
    v1::RankPlan share;
    ASSERT_TRUE(service.Get("job", 0, 0, 0, &share).ok());
    options.core.plan_bytes = Bytes(List(service).jobs(0).plan_bytes() * 3 / 2);
    ASSERT_TRUE(Close(service, "job").ok());
  }
  TestService service(options);
  ASSERT_TRUE(service.Open(open, &opened).ok());
  const int32_t ranks = opened.num_ranks();
  Random random(seed);
  int64_t submitted = 0;  // Steps that were accepted.
  std::vector<int64_t> next(static_cast<size_t>(ranks), 0);
  std::map<int64_t, std::string> sums;
  const auto submit = [&](int64_t step) {
    const grpc::Status status = service.Submit(
        SmallBatch("job", step, static_cast<uint64_t>(step + 1), 48));
    const bool known = status.ok() || status.error_code() ==
                                          grpc::StatusCode::RESOURCE_EXHAUSTED;
    // A step that all ranks have fetched may be gone.
    const bool passed = step < *std::min_element(next.begin(), next.end()) &&
                        status.error_code() == grpc::StatusCode::NOT_FOUND;
    EXPECT_TRUE(known || passed) << step << ": " << status.error_message();
    return status.ok();
  };
  for (int turn = 0; turn < 150; ++turn) {
    if (random.Below(3) == 0) {
      if (submit(submitted)) ++submitted;
      if (submitted > 0) submit(random.Below(submitted));
      continue;
    }
    const auto rank = static_cast<size_t>(random.Below(ranks));
    const int64_t step = next[rank];
    if (step >= submitted) continue;
    v1::RankPlan share;
    const grpc::Status status =
        service.Get("job", step, 0, static_cast<int32_t>(rank), &share);
    ASSERT_TRUE(status.ok())
        << "step " << step << ": " << status.error_message();
    const std::string sum = share.plan_checksum().SerializeAsString();
    EXPECT_EQ(sums.try_emplace(step, sum).first->second, sum) << step;
    ++next[rank];
  }
  EXPECT_GT(sums.size(), 5u);
}

TEST(PlanMemoryTest, WithLittleMemoryAllRanksOfAStepStillGetOnePlan) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    ASSERT_NO_FATAL_FAILURE(RunRandomly(seed, /*with_state=*/false));
    ASSERT_NO_FATAL_FAILURE(RunRandomly(seed, /*with_state=*/true));
  }
}

TEST(PlanMemoryTest, APlanThatIsOnlyOnDiskComesBackTheSame) {
  const TempFolder folder;
  service::ServerOptions options = TestOptions();
  options.core.state_dir = folder.path();
  options.core.plan_bytes = Bytes(1);
  TestService service(options);
  v1::OpenJobRequest open = SmallJobRequest(2, 0);
  open.mutable_job()->mutable_search()->set_deadline_us(5e3);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  const std::string job = opened.job_id();
  std::map<std::pair<int64_t, int32_t>, std::string> first;
  for (int64_t step = 0; step < 4; ++step) {
    const grpc::Status sent =
        service.Submit(SmallBatch(job, step, static_cast<uint64_t>(step + 1)));
    ASSERT_TRUE(sent.ok()) << sent.error_message();
    for (int32_t replica = 0; replica < 2; ++replica) {
      v1::RankPlan share;
      ASSERT_TRUE(service.Get(job, step, replica, 0, &share).ok());
      EXPECT_TRUE(share.durable());
      first[{step, replica}] = share.SerializeAsString();
    }
  }
  EXPECT_LT(List(service).jobs(0).plan_bytes(), int64_t{3} << 20);
  for (const auto& [key, expected] : first) {
    v1::RankPlan share;
    ASSERT_TRUE(service.Get(job, key.first, key.second, 0, &share).ok());
    EXPECT_EQ(share.SerializeAsString(), expected);
  }
}

TEST(PlanMemoryTest, ManyReplicasOfALargeJobAllGetOnePlanAStep) {
  const char* wanted = getenv("PIPELOOM_MANY_REPLICAS");
  if (wanted == nullptr || std::string(wanted) != "1") {
    GTEST_SKIP() << "the long form is asked for by PIPELOOM_MANY_REPLICAS=1";
  }
  constexpr int32_t kReplicas = 128;
  constexpr int64_t kSteps = 8;
  constexpr int64_t kAhead = 4;
  service::ServerOptions options = TestOptions();
  TestService service(options);
  ASSERT_OK_AND_ASSIGN(
      JobSpec job, formats::LoadJob("dip-vlm-xl", options.core.files.data_dir,
                                    options.core.files.read));
  job.parallel.dp = kReplicas;
  job.training.microbatches = 15;
  job.search.evaluations = 1;
  job.cluster.num_nodes = static_cast<int32_t>(
      job.parallel.num_gpus() / job.cluster.gpus_per_node + 1);
  v1::OpenJobRequest open;
  *open.mutable_job() = convert::ToProto(job);
  *open.mutable_sample() = convert::ToProto(RandomBatch(1, 512, 4));
  v1::OpenJobResponse opened;
  const grpc::Status status = service.Open(open, &opened);
  ASSERT_TRUE(status.ok()) << status.error_message();
  int64_t submitted = 0;
  int64_t most = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    while (submitted < std::min(kSteps, step + kAhead)) {
      const grpc::Status sent = service.Submit(
          SmallBatch(opened.job_id(), submitted,
                     static_cast<uint64_t>(submitted), kReplicas * 32));
      if (!sent.ok()) {
        // Ranks fetch first; the step that they wait for is always taken.
        ASSERT_EQ(sent.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
            << sent.error_message();
        ASSERT_GT(submitted, step);
        break;
      }
      ++submitted;
    }
    for (int32_t replica = 0; replica < kReplicas; ++replica) {
      std::string sum;
      for (int32_t rank = 0; rank < opened.num_ranks(); ++rank) {
        v1::RankPlan share;
        const grpc::Status got =
            service.Get(opened.job_id(), step, replica, rank, &share,
                        std::chrono::minutes(10));
        ASSERT_TRUE(got.ok()) << got.error_message();
        if (rank == 0) sum = share.plan_checksum().SerializeAsString();
        EXPECT_EQ(share.plan_checksum().SerializeAsString(), sum);
      }
    }
    most = std::max(most, List(service).jobs(0).plan_bytes());
  }
  EXPECT_LT(most, 2 * options.core.plan_bytes.count());
}

}  // namespace
}  // namespace pipeloom::testing
