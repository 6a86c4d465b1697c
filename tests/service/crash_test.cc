// A real process, killed at any moment: what was handed out is served again,
// byte for byte, and what was accepted is planned.
//
// PIPELOOM_CRASH_ROUNDS sets the number of kills; 5 without it.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/service_fixture.h"

namespace pipeloom::testing {
namespace {

// `pipeloom serve` on a free port, with a state folder.
class Process {
 public:
  explicit Process(const std::string& state) {
    int out[2];
    if (pipe(out) != 0) return;
    const std::string data = absl::StrCat(PIPELOOM_SOURCE_DIR, "/workloads");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      execl(PIPELOOM_SERVICE_BINARY, "pipeloom", "serve", "--listen",
            "127.0.0.1:0", "--state", state.c_str(), "--data-dir", data.c_str(),
            "--threads", "2", "--log-level", "error", nullptr);
      _exit(127);
    }
    close(out[1]);
    std::string line;
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    close(out[0]);
    const size_t colon = line.rfind(':');
    if (colon == std::string::npos) return;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::PlannerService::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1", line.substr(colon)),
        grpc::InsecureChannelCredentials(), arguments));
  }
  ~Process() { End(SIGKILL); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // The exit status.
  int End(int signal_number) {
    if (pid_ <= 0) return -1;
    kill(pid_, signal_number);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  bool ok() const { return stub_ != nullptr; }
  v1::PlannerService::Stub& stub() { return *stub_; }

 private:
  pid_t pid_ = -1;
  std::unique_ptr<v1::PlannerService::Stub> stub_{};
};

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
  int rounds = 5;
  if (const char* text = getenv("PIPELOOM_CRASH_ROUNDS")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &rounds));
  }
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

TEST(CrashTest, ATermSignalEndsItInOrder) {
  const TempFolder folder;
  Process process(folder.path());
  ASSERT_TRUE(process.ok());
  const int status = process.End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace pipeloom::testing
