// Requests that are wrong, too many, too large, not allowed or hostile.
#include <grpcpp/generic/generic_stub.h>
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/service_fixture.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;

// A call by its bytes: whatever they are.
grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& method, const std::string& bytes,
                     std::string* answer = nullptr) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (answer != nullptr && status.ok()) {
    grpc::Slice all;
    response.DumpToSingleSlice(&all);
    answer->assign(reinterpret_cast<const char*>(all.begin()), all.size());
  }
  return status;
}

TEST(RequestsTest, AMalformedJobIsRefusedByItsField) {
  TestService service;
  using Change = std::function<void(v1::OpenJobRequest*)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"job_id", [](auto* r) { r->set_job_id("../up"); }},
      {"job_id", [](auto* r) { r->set_job_id(std::string(65, 'a')); }},
      {"source", [](auto* r) { r->clear_job(); }},
      {"training.microbatches",
       [](auto* r) {
         r->mutable_job()->mutable_training()->set_microbatches(-3);
       }},
      {"parallel.pp",
       [](auto* r) { r->mutable_job()->mutable_parallel()->set_pp(1 << 30); }},
      {"job.model",
       [](auto* r) { r->mutable_job()->set_model("/etc/passwd"); }},
      {"job.cluster",
       [](auto* r) { r->mutable_job()->set_cluster("../x.json"); }},
      {"shipped_job", [](auto* r) { r->set_shipped_job("a/b"); }},
      {"schedule",
       [](auto* r) {
         r->mutable_job()->mutable_search()->set_schedule("best");
       }},
      {"gemm_efficiency",
       [](auto* r) {
         r->mutable_job()
             ->mutable_cluster_spec()
             ->mutable_device()
             ->set_gemm_efficiency(std::nan(""));
       }},
      {"sample.samples is empty", [](auto* r) { r->clear_sample(); }},
      {"sample.samples[0].images[0].width_px",
       [](auto* r) {
         auto* s = r->mutable_sample()->mutable_samples(0);
         s->clear_images();
         s->add_images()->set_height_px(5);
       }},
      {"partition.num_ranks",
       [](auto* r) { r->mutable_partition()->set_num_ranks(3); }},
      {"partition.stages[0].module",
       [](auto* r) {
         r->mutable_partition()->set_num_ranks(4);
         r->mutable_partition()->add_stages()->set_module("nothing");
       }},
  };
  for (const auto& [field, change] : cases) {
    v1::OpenJobRequest request = SmallJobRequest();
    change(&request);
    v1::OpenJobResponse response;
    const grpc::Status status = service.Open(request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_THAT(status.error_message(), HasSubstr(field));
  }
}

TEST(RequestsTest, AMalformedBatchIsRefusedByItsField) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  using Change = std::function<void(v1::SubmitBatchRequest*)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"step", [](auto* r) { r->set_step(-1); }},
      {"step",
       [](auto* r) { r->set_step(std::numeric_limits<int64_t>::max()); }},
      {"replica", [](auto* r) { r->set_replica(2); }},
      {"replica", [](auto* r) { r->set_replica(-1); }},
      {"batch.samples is empty", [](auto* r) { r->clear_batch(); }},
      {"batch.samples[3].text_tokens",
       [](auto* r) {
         r->mutable_batch()->mutable_samples(3)->set_text_tokens(-5);
       }},
      {"batch.samples[1].audio_seconds[0]",
       [](auto* r) {
         r->mutable_batch()->mutable_samples(1)->add_audio_seconds(INFINITY);
       }},
      {"batch.samples[2].videos[0].seconds",
       [](auto* r) {
         r->mutable_batch()->mutable_samples(2)->add_videos()->set_seconds(
             std::nan(""));
       }},
      {"microbatch_of", [](auto* r) { r->add_microbatch_of(0); }},
      {"microbatch_of has 1",
       [](auto* r) {
         r->set_replica(0);
         r->add_microbatch_of(0);
       }},
      {"microbatch_of[0]",
       [](auto* r) {
         r->set_replica(0);
         for (int i = 0; i < 24; ++i) r->add_microbatch_of(1 << 30);
       }},
      {"gaps",
       [](auto* r) {
         r->set_replica(0);
         for (int i = 0; i < 24; ++i) r->add_microbatch_of(1);
       }},
  };
  for (const auto& [field, change] : cases) {
    v1::SubmitBatchRequest request = SmallBatch(job, 0, 1);
    change(&request);
    const grpc::Status status = service.Submit(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << field << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(field));
  }
  v1::RankPlan share;
  for (const auto& [replica, rank] :
       std::vector<std::pair<int, int>>{{2, 0}, {-1, 0}, {0, 4}, {0, -1}}) {
    EXPECT_EQ(service.Get(job, 0, replica, rank, &share).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(service.Get(job, -1, 0, 0, &share).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(service.Get("none", 0, 0, 0, &share).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(service.Submit(SmallBatch("none", 0, 1)).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(RequestsTest, OverCapacityIsRefusedWithAHint) {
  service::ServerOptions options = TestOptions();
  options.core.max_queued = 2;
  options.core.max_jobs = 1;
  options.core.batch.samples = 100;
  options.core.max_tasks = 5000;
  options.core.threads = 1;
  TestService service(std::move(options));
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  open.mutable_job()->mutable_search()->set_deadline_us(600e6);
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(open, &opened).ok());
  const std::string job = opened.job_id();

  EXPECT_EQ(service.Open(SmallJobRequest(2), &opened).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  const grpc::Status samples = service.Submit(SmallBatch(job, 0, 1, 101));
  EXPECT_EQ(samples.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(service.trailer("retry-after-ms"), "") << "waiting does not help";
  v1::SubmitBatchRequest many = SmallBatch(job, 0, 1, 0);
  many.set_replica(0);
  for (int i = 0; i < 100; ++i) {
    v1::SampleMetadata* s = many.mutable_batch()->add_samples();
    s->set_text_tokens(500'000);
  }
  const grpc::Status tasks = service.Submit(many);
  EXPECT_EQ(tasks.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(tasks.error_message(), HasSubstr("tasks"));

  // One runs, two wait, whichever that are: of five some are refused.
  int refused = 0;
  for (int64_t step = 0; step < 5; ++step) {
    const grpc::Status status = service.Submit(SmallBatch(job, step, 1, 16));
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_GT(std::atoi(service.trailer("retry-after-ms").c_str()), 0);
  }
  EXPECT_GE(refused, 1);
}

TEST(RequestsTest, ALargeMessageIsRefusedBeforeItIsRead) {
  service::ServerOptions options = TestOptions();
  options.max_message = Bytes(10'000);
  TestService service(std::move(options));
  v1::OpenJobRequest request;
  request.set_shipped_job(std::string(20'000, 'x'));
  v1::OpenJobResponse response;
  EXPECT_EQ(service.Open(request, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(RequestsTest, WithoutTheTokenNothingIsAnswered) {
  service::ServerOptions options = TestOptions();
  options.token = "open sesame";
  TestService service(std::move(options));
  for (const char* token : {"", "wrong", "open sesame!", "open sesam"}) {
    service.set_token(token);
    v1::OpenJobResponse opened;
    EXPECT_EQ(service.Open(SmallJobRequest(), &opened).error_code(),
              grpc::StatusCode::UNAUTHENTICATED)
        << token;
    EXPECT_EQ(service.Submit(SmallBatch("x", 0, 1)).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    v1::RankPlan share;
    EXPECT_EQ(service.Get("x", 0, 0, 0, &share).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    grpc::ClientContext context;
    service.Prepare(&context, std::chrono::seconds(10));
    const auto watch = service.stub().Watch(&context, {});
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  service.set_token("open sesame");
  v1::OpenJobResponse opened;
  EXPECT_TRUE(service.Open(SmallJobRequest(), &opened).ok());
}

TEST(RequestsTest, WithTlsAPlainCallerIsNotServed) {
  const TempFolder folder;
  const std::string command = absl::StrCat(
      "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost "
      "-addext subjectAltName=IP:127.0.0.1 -keyout ",
      folder.path(), "/key -out ", folder.path(), "/cert >/dev/null 2>&1");
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "openssl is not here";
  const auto read = [&](const char* name) {
    std::ifstream file(absl::StrCat(folder.path(), "/", name));
    return std::string((std::istreambuf_iterator<char>(file)),
                       std::istreambuf_iterator<char>());
  };
  service::ServerOptions options = TestOptions();
  options.tls.certificate = read("cert");
  EXPECT_THAT(service::Server::Start(options),
              FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("key")));
  options.tls.key = read("key");
  TestService service(std::move(options));
  v1::OpenJobResponse opened;
  EXPECT_TRUE(service.Open(SmallJobRequest(), &opened).ok());
  const auto plain =
      grpc::CreateChannel(service.target(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(
      RawCall(plain, "/pipeloom.v1.PlannerService/CloseJob", "").error_code(),
      grpc::StatusCode::UNAVAILABLE);
}

TEST(RequestsTest, ACancelledFetchLeavesNothingBehind) {
  service::ServerOptions options = TestOptions();
  options.core.max_waiting = 3;
  TestService service(std::move(options));
  const std::string job = service.OpenSmallJob();
  v1::GetRankPlanRequest request;
  request.set_job_id(job);
  for (int round = 0; round < 20; ++round) {
    grpc::ClientContext context;
    service.Prepare(&context, std::chrono::seconds(30));
    std::jthread leaver([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));
      context.TryCancel();
    });
    v1::RankPlan share;
    // If waits were left behind, the fourth would be refused.
    EXPECT_EQ(
        service.stub().GetRankPlan(&context, request, &share).error_code(),
        grpc::StatusCode::CANCELLED)
        << round;
    // The server learns of it a moment later.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(RequestsTest, HostileBytesCrashAndHangNothing) {
  TestService service;
  const std::string job = service.OpenSmallJob();
  const auto channel =
      grpc::CreateChannel(service.target(), grpc::InsecureChannelCredentials());
  v1::EmulateRequest emulate;
  emulate.mutable_key()->set_job_id(job);
  v1::WhatIfRequest what_if;
  what_if.set_job_id(job);
  what_if.set_evaluations(1);
  *what_if.mutable_batch() = SmallBatch(job, 0, 1, 4).batch();
  v1::JobChange* change = what_if.add_variants()->add_changes();
  change->set_path("parallel.dp");
  change->set_value("1");
  v1::ReportTraceRequest report;
  report.set_job_id(job);
  report.mutable_trace()->set_num_ranks(1 << 30);
  const std::vector<std::pair<std::string, std::string>> seeds = {
      {"OpenJob", SmallJobRequest().SerializeAsString()},
      {"SubmitBatch", SmallBatch(job, 0, 1).SerializeAsString()},
      {"Emulate", emulate.SerializeAsString()},
      {"WhatIf", what_if.SerializeAsString()},
      {"ReportTrace", report.SerializeAsString()},
      {"CloseJob", "\x0a\x01y"},
  };
  Random random(11);
  int answered = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto& [method, seed] = seeds[static_cast<size_t>(i) % seeds.size()];
    std::string bytes = seed;
    const int64_t edits = 1 + random.Below(8);
    for (int64_t e = 0; e < edits && !bytes.empty(); ++e) {
      const auto at =
          static_cast<size_t>(random.Below(static_cast<int64_t>(bytes.size())));
      switch (random.Below(3)) {
        case 0:
          bytes[at] = static_cast<char>(random.Below(256));
          break;
        case 1:
          bytes.erase(at, static_cast<size_t>(1 + random.Below(8)));
          break;
        default:
          bytes.insert(at, 1, static_cast<char>(random.Below(256)));
      }
    }
    const grpc::Status status = RawCall(
        channel, absl::StrCat("/pipeloom.v1.PlannerService/", method), bytes);
    answered += status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED &&
                status.error_code() != grpc::StatusCode::UNAVAILABLE;
  }
  EXPECT_EQ(answered, 1000);
  std::string health;
  EXPECT_TRUE(
      RawCall(channel, "/grpc.health.v1.Health/Check", "", &health).ok());
  EXPECT_EQ(health, std::string("\x08\x01", 2)) << "not serving";
}

}  // namespace
}  // namespace pipeloom::testing
