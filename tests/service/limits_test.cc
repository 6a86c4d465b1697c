// Limits on callers: memory before it is taken, answers that they do not read,
// calls that never begin, and threads that others need.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/core/planner_core.h"
#include "service/os/descriptor_limit.h"
#include "service/os/memory_budget.h"
#include "service/rpc/message_size.h"
#include "tests/service/rpc_by_hand.h"
#include "tests/service/service_fixture.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;

// A batch of so many samples without content: two bytes each.
std::string EmptySamples(const std::string& job, int64_t count) {
  v1::SubmitBatchRequest request;
  request.set_job_id(job);
  std::string wire = request.SerializeAsString();
  std::string samples;
  for (int64_t i = 0; i < count; ++i) samples.append("\x0a\x00", 2);
  wire += '\x22';  // Field 4, `batch`.
  for (size_t length = samples.size();; length >>= 7) {
    const bool last = length < 128;
    wire += static_cast<char>((length & 127) | (last ? 0 : 128));
    if (last) break;
  }
  return wire + samples;
}

TEST(ParsedSizeTest, ItIsNearTheMemoryThatParsingTakes) {
  const auto size = [](const google::protobuf::Message& message) {
    return service::ParsedSize(message, message.SerializeAsString(),
                               int64_t{1} << 40);
  };
  v1::SubmitBatchRequest empty;
  ASSERT_TRUE(empty.ParseFromString(EmptySamples("job", 10'000)));
  v1::SubmitBatchRequest packed = SmallBatch("job", 0, 3, 500);
  for (int i = 0; i < 100'000; ++i) packed.add_microbatch_of(i % 100);
  v1::SubmitBatchRequest fresh;
  ASSERT_TRUE(fresh.ParseFromString(packed.SerializeAsString()));
  for (const v1::SubmitBatchRequest* m : {&empty, &fresh}) {
    const auto real = static_cast<double>(m->SpaceUsedLong());
    EXPECT_GT(static_cast<double>(size(*m)), 0.7 * real);
    EXPECT_LT(static_cast<double>(size(*m)), 4 * real);
  }
}

TEST(ParsedSizeTest, CountingEndsAtTheMost) {
  const std::string wire = EmptySamples("job", 1'000'000);
  const int64_t counted = service::ParsedSize(
      v1::SubmitBatchRequest::default_instance(), wire, 5000);
  EXPECT_GT(counted, 5000);
  EXPECT_LT(counted, 6000);
  // Bytes that are no message end it, too.
  EXPECT_LT(service::ParsedSize(v1::SubmitBatchRequest::default_instance(),
                                std::string(1000, '\xff'), 5000),
            5000);
}

TEST(MemoryBudgetTest, OneCallerGetsHalfAndAllTogetherNoMore) {
  service::MemoryBudget budget{pipeloom::Bytes(100)};
  EXPECT_TRUE(budget.Take("a", 30));
  EXPECT_FALSE(budget.Take("a", 30));
  EXPECT_TRUE(budget.Take("a", 20));
  EXPECT_TRUE(budget.Take("b", 50));
  EXPECT_FALSE(budget.Take("c", 1));
  budget.Give("a", 50);
  EXPECT_TRUE(budget.Take("c", 50));
  EXPECT_EQ(budget.used(), 100);
  budget.Give("b", 50);
  budget.Give("c", 50);
  // Something larger than everything is let through alone.
  EXPECT_TRUE(budget.Take("a", 1000));
  EXPECT_FALSE(budget.Take("b", 1));
}

TEST(LimitsTest, ABatchOfEmptySamplesIsRefusedBeforeItIsParsed) {
  service::ServerOptions options = TestOptions();
  options.limits.memory = pipeloom::Bytes(int64_t{16} << 20);
  TestService service(options);
  const std::string job = service.OpenSmallJob(1);
  const auto channel =
      grpc::CreateChannel(service.target(), grpc::InsecureChannelCredentials());
  // 2 MB on the wire, more than 100 MB in memory.
  Client call(channel, "/pipeloom.v1.PlannerService/SubmitBatch",
              EmptySamples(job, 1'000'000));
  EXPECT_EQ(call.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(call.Wait().error_message(), HasSubstr("memory"));
  EXPECT_TRUE(service.Submit(SmallBatch(job, 0, 1)).ok());
}

// A client that asks and does not read.
TEST(LimitsTest, UnreadAnswersAreBounded) {
  service::RpcLimits limits;
  limits.memory = pipeloom::Bytes(int64_t{4} << 20);
  Rpc rpc(limits);
  constexpr int kCalls = 60;
  std::atomic<int> handled = 0;
  std::atomic<int64_t> most = 0;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    call->Finish(Bytes(std::string(1 << 20, 'x')));
    most = std::max(most.load(), rpc.server.memory_used());
    ++handled;
  });
  rpc.Start();
  const int fd = Connect(rpc.port);
  ASSERT_GE(fd, 0);
  std::string calls = Preface();
  for (int i = 0; i < kCalls; ++i) {
    const auto stream = static_cast<char>(2 * i + 1);
    calls += BeginCall("/a.B/C", stream) + Request("x", stream);
  }
  ASSERT_EQ(send(fd, calls.data(), calls.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(calls.size()));
  for (int i = 0; i < 2000 && handled < kCalls; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(handled, kCalls);
  EXPECT_LE(most, int64_t{3} << 20);
  // Others are served meanwhile.
  EXPECT_EQ(Client(rpc.channel, "/a.B/C", "y").answer().size(), 1u << 20);
  close(fd);
  for (int i = 0; i < 2000 && rpc.server.memory_used() > 0; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(rpc.server.memory_used(), 0);
}

// gRPC's probe of bandwidth would answer every call with one more frame.
TEST(LimitsTest, ACallCausesNoPing) {
  TestService service;
  const int fd = Connect(service.server().port());
  ASSERT_GE(fd, 0);
  timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string calls = Preface();
  for (const char stream : {'\1', '\3', '\5'}) {
    calls += BeginCall("/pipeloom.v1.PlannerService/GetRankPlan", stream) +
             Request("", stream);
  }
  ASSERT_EQ(send(fd, calls.data(), calls.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(calls.size()));
  constexpr size_t kHeader = 9;
  std::string answer;
  int ended = 0;
  while (ended < 3) {
    char buffer[4096];
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    ASSERT_GT(got, 0) << "no answer";
    answer.append(buffer, static_cast<size_t>(got));
    while (answer.size() >= kHeader) {
      const auto byte = [&](size_t i) {
        return static_cast<size_t>(static_cast<unsigned char>(answer[i]));
      };
      const size_t frame = kHeader + (byte(0) << 16 | byte(1) << 8 | byte(2));
      if (answer.size() < frame) break;
      EXPECT_NE(byte(3), 6u) << "a PING";
      // Trailers end a stream.
      if (byte(3) == 1 && (byte(4) & 1) != 0) ++ended;
      answer.erase(0, frame);
    }
  }
  close(fd);
}

TEST(LimitsTest, ACallWithoutTheTokenIsRefusedBeforeItsRequestIsRead) {
  service::ServerOptions options = TestOptions();
  options.token = "secret";
  TestService service(options);
  const int fd = Connect(service.server().port());
  ASSERT_GE(fd, 0);
  // Headers, and never a request.
  const std::string begin =
      Preface() + BeginCall("/pipeloom.v1.PlannerService/SubmitBatch");
  ASSERT_EQ(send(fd, begin.data(), begin.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(begin.size()));
  timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string answer;
  char buffer[4096];
  while (answer.find("Bearer") == std::string::npos) {
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    ASSERT_GT(got, 0) << "no answer to a call without a token";
    answer.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
}

TEST(LimitsTest, ARequestThatDoesNotArriveInTimeEndsItsCall) {
  service::RpcLimits limits;
  limits.request_time = milliseconds(100);
  Rpc rpc(limits);
  rpc.server.Add("/a.B/C",
                 [](const auto& call) { call->Finish(call->request()); });
  rpc.Start();
  Stream call(rpc.channel, "/a.B/C");
  EXPECT_EQ(call.Read(), std::nullopt);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("did not arrive"));
  EXPECT_EQ(Client(rpc.channel, "/a.B/C", "x").answer(), "x");
}

TEST(LimitsTest, OneConnectionDoesNotTakeAllCalls) {
  service::RpcLimits limits;
  limits.calls_of_connection = 3;
  Rpc rpc(limits);
  struct {
    Mutex mutex{};
    std::vector<std::shared_ptr<RpcCall>> calls ABSL_GUARDED_BY(mutex){};
  } open;
  rpc.server.Add("/a.B/Wait", [&](const auto& call) {
    const MutexLock lock(&open.mutex);
    open.calls.push_back(call);
  });
  rpc.server.Add("/a.B/C",
                 [](const auto& call) { call->Finish(call->request()); });
  rpc.Start();
  std::vector<std::unique_ptr<Client>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::make_unique<Client>(rpc.channel, "/a.B/Wait", "x"));
  }
  for (int i = 0; i < 2000; ++i) {
    {
      const MutexLock lock(&open.mutex);
      if (open.calls.size() == 3) break;
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
  Client fourth(rpc.channel, "/a.B/C", "x");
  EXPECT_EQ(fourth.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(fourth.Wait().error_message(), HasSubstr("on this connection"));
  EXPECT_EQ(Client(rpc.NewChannel(), "/a.B/C", "x").answer(), "x");
  const MutexLock lock(&open.mutex);
  for (const auto& call : open.calls) call->Finish(grpc::Status::OK);
  open.calls.clear();
}

TEST(LimitsTest, TheDescriptorLimitIsRaised) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = std::min<rlim_t>(256, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const int64_t raised = service::RaiseDescriptorLimit();
  EXPECT_EQ(raised, static_cast<int64_t>(
                        std::min<rlim_t>(before.rlim_max, rlim_t{1} << 20)));
  setrlimit(RLIMIT_NOFILE, &before);
}

// Else the kernel's table grows while connections come, which all wait for.
TEST(LimitsTest, DescriptorsOfAllConnectionsAreReserved) {
  service::ServerOptions options = TestOptions();
  options.guard.connections = 5000;
  TestService service(options);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::ifstream status("/proc/self/status");
  std::string word;
  rlim_t size = 0;
  while (status >> word) {
    if (word == "FDSize:") status >> size;
  }
  EXPECT_GE(size, std::min<rlim_t>(limit.rlim_cur, 15'000));
}

TEST(FairnessTest, WhatIfCallsDoNotDelaySubmissions) {
  service::ServerOptions options = TestOptions();
  TestService service(options);
  const std::string job = service.OpenSmallJob(1);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::jthread> busy;
  for (int i = 0; i < 6; ++i) {
    grpc::ClientContext& context =
        *contexts.emplace_back(std::make_unique<grpc::ClientContext>());
    service.Prepare(&context, std::chrono::seconds(120));
    busy.emplace_back([&service, &context, job] {
      v1::WhatIfRequest request;
      request.set_job_id(job);
      request.set_evaluations(1'000'000);
      *request.mutable_batch() = SmallBatch(job, 0, 1, 64).batch();
      for (int v = 0; v < 64; ++v) request.add_variants();
      v1::WhatIfResponse response;
      service.stub().WhatIf(&context, request, &response);
    });
  }
  std::this_thread::sleep_for(milliseconds(200));
  v1::RankPlan share;
  EXPECT_TRUE(service.Submit(SmallBatch(job, 0, 5)).ok());
  EXPECT_TRUE(service.Get(job, 0, 0, 0, &share).ok());
  for (const auto& context : contexts) context->TryCancel();
}

TEST(FairnessTest, AJobWithALongDeadlineDoesNotStarveAnother) {
  service::ServerOptions options = TestOptions();
  options.core.threads = 1;
  options.core.patience = milliseconds(200);
  TestService service(options);
  v1::OpenJobRequest greedy = SmallJobRequest(1, 0);
  greedy.mutable_job()->mutable_search()->set_deadline_us(600e6);
  greedy.set_job_id("greedy");
  v1::OpenJobResponse opened;
  ASSERT_TRUE(service.Open(greedy, &opened).ok());
  EXPECT_EQ(opened.search_deadline_us(), 60'000'000);
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(
        service.Submit(SmallBatch("greedy", step, 9 + uint64_t(step), 64))
            .ok());
  }
  v1::OpenJobRequest modest = SmallJobRequest(1, 0);
  modest.mutable_job()->mutable_search()->set_deadline_us(20e3);
  modest.set_job_id("modest");
  ASSERT_TRUE(service.Open(modest, &opened).ok());
  // Each is searched for in full, long before the other's deadline.
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(
        service.Submit(SmallBatch("modest", step, uint64_t(step) + 1)).ok());
    v1::RankPlan share;
    const grpc::Status status =
        service.Get("modest", step, 0, 0, &share, std::chrono::seconds(50));
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_NE(share.quality(), v1::PLAN_QUALITY_BEST_SO_FAR) << step;
  }
}

// Its searches of 20 s would never be done in time.
TEST(FairnessTest, ATrainerThatGoesOnWithoutPlansGetsShorterSearches) {
  service::CoreOptions options = TestOptions().core;
  options.threads = 1;
  Mutex mutex;
  std::string told;
  service::Log log(service::LogLevel::kWarning, [&](absl::string_view line) {
    const MutexLock lock(&mutex);
    told.append(line.data(), line.size());
  });
  service::Metrics metrics;
  ASSERT_OK_AND_ASSIGN(const auto core,
                       service::PlannerCore::Create(options, &log, &metrics));
  v1::OpenJobRequest open = SmallJobRequest(1, 0);
  open.set_job_id("job");
  open.mutable_job()->mutable_search()->set_deadline_us(20e6);
  // So short that no answer meets its bound.
  open.mutable_job()->mutable_training()->set_memory_limit_bytes(2'000'000'000);
  ASSERT_THAT(core->OpenJob(open), IsOk());
  const auto in = [](std::chrono::seconds time) {
    return service::PlannerCore::Clock::now() + time;
  };
  constexpr int64_t kLast = 7;
  for (int64_t step = 0; step <= kLast; ++step) {
    const auto seed = static_cast<uint64_t>(step) + 9;
    ASSERT_THAT(core->Submit(SmallBatch("job", step, seed, 64)), IsOk());
    const int64_t call =
        core->Await({"job", step}, 0, in(std::chrono::seconds(600)),
                    [](const service::PlanOrError&) {});
    ASSERT_TRUE(core->CancelAwait(call));
  }
  const auto get = [&](int64_t step, std::chrono::seconds time) {
    std::promise<service::PlanOrError> plan;
    core->Await({"job", step}, 0, in(time),
                [&](service::PlanOrError made) { plan.set_value(made); });
    return plan.get_future().get();
  };
  // Ends the first search, which had begun.
  ASSERT_THAT(get(0, std::chrono::seconds(2)), IsOk());
  const service::PlanOrError last = get(kLast, std::chrono::seconds(600));
  ASSERT_THAT(last, IsOk());
  EXPECT_EQ((*last)->quality, v1::PLAN_QUALITY_BEST_SO_FAR);
  EXPECT_GT(metrics.searches_shortened, 0);
  const MutexLock lock(&mutex);
  EXPECT_THAT(told, HasSubstr("\"event\": \"plan_late\", \"job\": \"job\", "
                              "\"step\": 0, \"search_time_percent\": 50}"));
}

}  // namespace
}  // namespace pipeloom::testing
