// A real process, killed at any moment: what was handed out is served again,
// byte for byte, and what was accepted is planned.
//
// PIPELOOM_CRASH_ROUNDS sets the number of kills; 5 without it.
// PIPELOOM_REOPEN_ROUNDS does for jobs that are closed and opened anew; 3.
#include <filesystem>
#include <map>
#include <thread>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/service_fixture.h"
#include "tests/service/service_process.h"

namespace pipeloom::testing {
namespace {

grpc::Status Get(v1::PlannerService::Stub& stub, const std::string& job,
                 int64_t step, int32_t replica, v1::RankPlan* share) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(60));
  v1::GetRankPlanRequest request;
  request.set_job_id(job);
  request.set_step(step);
  request.set_replica(replica);
  return stub.GetRankPlan(&context, request, share);
}

TEST(CrashTest, KilledAtAnyMomentItServesTheSamePlansAgain) {
  const int rounds = Rounds("PIPELOOM_CRASH_ROUNDS", 5);
  const TempFolder folder;
  v1::OpenJobRequest open = SmallJobRequest(2, 0);
  // With a deadline in time, a plan that is made twice would differ.
  open.mutable_job()->mutable_search()->set_deadline_us(5e3);
  open.set_job_id("job");
  std::map<std::pair<int64_t, int32_t>, std::string> served;
  int64_t next = 0;  // The first step that was not accepted yet.
  Random random(5);
  for (int round = 0; round < rounds; ++round) {
    Process process(folder.path());
    ASSERT_TRUE(process.ok()) << "round " << round;
    grpc::ClientContext context;
    v1::OpenJobResponse opened;
    const grpc::Status status = process.stub().OpenJob(&context, open, &opened);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(opened.existed(), round > 0);
    // All that was seen is the same; all that was accepted is there.
    for (int64_t step = std::max<int64_t>(0, next - 20); step < next; ++step) {
      for (int32_t replica = 0; replica < 2; ++replica) {
        v1::RankPlan share;
        const grpc::Status got =
            Get(process.stub(), "job", step, replica, &share);
        ASSERT_TRUE(got.ok()) << "round " << round << ", step " << step << ": "
                              << got.error_message();
        const auto [it, fresh] =
            served.try_emplace({step, replica}, share.SerializeAsString());
        EXPECT_EQ(it->second, share.SerializeAsString())
            << "round " << round << ", step " << step;
      }
    }
    std::jthread killer([&process, wait = random.Below(60)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
      process.End(SIGKILL);
    });
    // Until it is gone: steps are submitted and fetched.
    while (true) {
      grpc::ClientContext submit_context;
      v1::SubmitBatchResponse submitted;
      if (!process.stub()
               .SubmitBatch(
                   &submit_context,
                   SmallBatch("job", next, static_cast<uint64_t>(next), 16),
                   &submitted)
               .ok()) {
        break;
      }
      ++next;
      v1::RankPlan share;
      if (next % 2 == 0 &&
          Get(process.stub(), "job", next - 1, 0, &share).ok()) {
        served[{next - 1, 0}] = share.SerializeAsString();
      }
    }
  }
  EXPECT_GT(served.size(), 0u);
}

// Returns an error unless the plan holds all samples of the batch, with their
// text.
std::string Foreign(const v1::RankPlan& share,
                    const v1::SubmitBatchRequest& batch) {
  int64_t text = 0;
  for (const v1::SampleMetadata& s : batch.batch().samples()) {
    text += s.text_tokens();
  }
  for (const v1::PlannedMicrobatch& m : share.microbatches()) {
    text -= m.text_tokens();
  }
  return text == 0 ? "" : absl::StrCat("the plan's text differs by ", text);
}

TEST(CrashTest, AJobThatIsOpenedAnewNeverGetsThePlansOfTheOldOne) {
  const int rounds = Rounds("PIPELOOM_REOPEN_ROUNDS", 3);
  constexpr int kOpenings = 3;
  const TempFolder folder;
  Random random(17);
  int64_t content = 0;
  const auto open_of = [](int64_t c) {
    v1::OpenJobRequest open = SmallJobRequest(1, 0);
    open.mutable_job()->mutable_training()->set_microbatches(
        static_cast<int32_t>(2 + c % 5));
    open.mutable_job()->mutable_search()->set_deadline_us(3e3);
    open.set_job_id("job");
    return open;
  };
  const auto batch_of = [](int64_t c, int64_t step) {
    return SmallBatch("job", step, static_cast<uint64_t>(100 * c + step), 400);
  };
  // Opens the job with the newest content and looks at its first steps.
  const auto check = [&](Process& process) {
    grpc::ClientContext context;
    v1::OpenJobResponse opened;
    const grpc::Status status =
        process.stub().OpenJob(&context, open_of(content), &opened);
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (int64_t step = 0; step < 2; ++step) {
      const v1::SubmitBatchRequest batch = batch_of(content, step);
      grpc::ClientContext submit_context;
      v1::SubmitBatchResponse submitted;
      const grpc::Status sent =
          process.stub().SubmitBatch(&submit_context, batch, &submitted);
      ASSERT_TRUE(sent.ok()) << "step " << step << ": " << sent.error_message();
      v1::RankPlan share;
      const grpc::Status got = Get(process.stub(), "job", step, 0, &share);
      ASSERT_TRUE(got.ok()) << got.error_message();
      EXPECT_EQ(Foreign(share, batch), "") << "step " << step;
    }
  };
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    {
      Process process(folder.path());
      ASSERT_TRUE(process.ok());
      if (round > 0) {
        ASSERT_NO_FATAL_FAILURE(check(process));
      }
      for (int opening = 0; opening < kOpenings; ++opening) {
        // Closed while its plans are made and written.
        grpc::ClientContext close_context;
        v1::CloseJobRequest close;
        close.set_job_id("job");
        v1::CloseJobResponse closed;
        ASSERT_TRUE(
            process.stub().CloseJob(&close_context, close, &closed).ok());
        ++content;
        grpc::ClientContext open_context;
        v1::OpenJobResponse opened;
        ASSERT_TRUE(process.stub()
                        .OpenJob(&open_context, open_of(content), &opened)
                        .ok());
        for (int64_t step = 0; step < 4; ++step) {
          grpc::ClientContext submit_context;
          v1::SubmitBatchResponse submitted;
          const grpc::Status sent = process.stub().SubmitBatch(
              &submit_context, batch_of(content, step), &submitted);
          ASSERT_TRUE(sent.ok()) << sent.error_message();
        }
        std::this_thread::sleep_for(
            std::chrono::milliseconds(random.Below(60)));
      }
    }  // Killed.
    Process process(folder.path());
    ASSERT_TRUE(process.ok());
    ASSERT_NO_FATAL_FAILURE(check(process));
  }
}

// The disk is as it is when a job is closed while a plan of it is written,
// another is opened under its id, and the process is killed then.
TEST(CrashTest, APlanThatAClosedJobLeftIsNotServed) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  const fs::path plan =
      fs::path(folder.path()) / "jobs" / "job" / "plans" / "0000000000000000.0";
  const fs::path left = fs::path(folder.path()) / "left";
  const auto begin = [](Process& process, int32_t microbatches, uint64_t seed) {
    v1::OpenJobRequest open = SmallJobRequest(1, 5);
    open.mutable_job()->mutable_training()->set_microbatches(microbatches);
    open.set_job_id("job");
    grpc::ClientContext open_context;
    v1::OpenJobResponse opened;
    EXPECT_TRUE(process.stub().OpenJob(&open_context, open, &opened).ok());
    grpc::ClientContext submit_context;
    v1::SubmitBatchResponse submitted;
    EXPECT_TRUE(process.stub()
                    .SubmitBatch(&submit_context, SmallBatch("job", 0, seed),
                                 &submitted)
                    .ok());
    v1::RankPlan share;
    EXPECT_TRUE(Get(process.stub(), "job", 0, 0, &share).ok());
    return share;
  };
  {
    Process process(folder.path());
    ASSERT_TRUE(process.ok());
    begin(process, 2, 1);
    fs::copy_file(plan, left);
    grpc::ClientContext context;
    v1::CloseJobRequest close;
    close.set_job_id("job");
    v1::CloseJobResponse closed;
    ASSERT_TRUE(process.stub().CloseJob(&context, close, &closed).ok());
    begin(process, 5, 2);
  }
  fs::copy_file(left, plan, fs::copy_options::overwrite_existing);
  Process process(folder.path());
  ASSERT_TRUE(process.ok());
  const v1::RankPlan share = begin(process, 5, 2);
  EXPECT_EQ(Foreign(share, SmallBatch("job", 0, 2)), "");
}

TEST(CrashTest, ATermSignalEndsItInOrder) {
  const TempFolder folder;
  Process process(folder.path());
  ASSERT_TRUE(process.ok());
  const int status = process.End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace pipeloom::testing
