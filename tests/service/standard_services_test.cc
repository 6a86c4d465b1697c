// Health checking and reflection against gRPC's own, which serve the same
// messages in another process: the same question, the same answer.
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/generic/generic_stub.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "gtest/gtest.h"
#include "service/rpc/rpc_messages.h"
#include "tests/service/service_fixture.h"

namespace pipeloom::testing {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(),
                                   arguments);
}

// Runs until this goes.
class Reference {
 public:
  Reference() {
    int out[2];
    if (pipe(out) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      execl(PIPELOOM_REFERENCE_SERVICES, "reference_services", nullptr);
      _exit(127);
    }
    close(out[1]);
    std::string line;
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    close(out[0]);
    if (!line.empty()) channel = ChannelTo(absl::StrCat("127.0.0.1:", line));
  }
  ~Reference() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  std::shared_ptr<grpc::Channel> channel{};

 private:
  pid_t pid_ = -1;
};

// Sends all requests, reads `answers` answers, and the status if the stream
// ends before.
template <typename Response, typename Request>
std::vector<Response> Ask(const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& method,
                          const std::vector<Request>& requests, size_t answers,
                          grpc::Status* status) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  next();
  for (const Request& request : requests) {
    call->Write(service::ToBytes(request), nullptr);
    next();
  }
  call->WritesDone(nullptr);
  next();
  std::vector<Response> all;
  bool more = true;
  while (more && all.size() < answers) {
    grpc::ByteBuffer bytes;
    call->Read(&bytes, nullptr);
    more = next();
    if (!more) continue;
    grpc::Slice slice;
    EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
    EXPECT_TRUE(all.emplace_back().ParseFromArray(
        slice.begin(), static_cast<int>(slice.size())));
  }
  if (more) {
    context.TryCancel();  // A stream that has no end.
    *status = grpc::Status::OK;
  }
  grpc::Status last;
  call->Finish(&last, nullptr);
  next();
  if (!more) *status = last;
  return all;
}

TEST(StandardServicesTest, HealthAnswersAsGrpcsOwn) {
  const Reference reference;
  ASSERT_NE(reference.channel, nullptr);
  const TestService service;
  const auto ours = ChannelTo(service.target());
  for (const char* method : {"Check", "Watch"}) {
    for (const char* name :
         {"", "pipeloom.v1.PlannerService", "pipeloom.v1", "no.such.Service"}) {
      HealthCheckRequest request;
      request.set_service(name);
      const std::string path = absl::StrCat("/grpc.health.v1.Health/", method);
      grpc::Status status[2];
      const auto theirs = Ask<HealthCheckResponse, HealthCheckRequest>(
          reference.channel, path, {request}, 1, &status[0]);
      const auto mine = Ask<HealthCheckResponse, HealthCheckRequest>(
          ours, path, {request}, 1, &status[1]);
      EXPECT_EQ(status[0].error_code(), status[1].error_code())
          << method << " " << name;
      ASSERT_EQ(theirs.size(), mine.size()) << method << " " << name;
      for (size_t i = 0; i < theirs.size(); ++i) {
        EXPECT_EQ(theirs[i].status(), mine[i].status())
            << method << " " << name;
      }
    }
  }
}

TEST(StandardServicesTest, ReflectionAnswersAsGrpcsOwn) {
  std::vector<ServerReflectionRequest> requests;
  const auto add = [&] { return &requests.emplace_back(); };
  for (const char* file :
       {"pipeloom/v1/planner_service.proto", "pipeloom/v1/plan.proto",
        "pipeloom/v1/none.proto", "", "/etc/passwd"}) {
    add()->set_file_by_filename(file);
  }
  for (const char* symbol :
       {"pipeloom.v1.PlannerService", "pipeloom.v1.PlannerService.GetRankPlan",
        "pipeloom.v1.RankPlan", "pipeloom.v1.RankPlan.rank",
        "pipeloom.v1.PlanQuality", "pipeloom.v1.PLAN_QUALITY_FULL",
        "pipeloom.v1", "pipeloom.v1.None", "no.such.symbol", "", ".", "\n"}) {
    add()->set_file_containing_symbol(symbol);
  }
  for (const char* type : {"pipeloom.v1.RankPlan", "pipeloom.v1.PlannerService",
                           "no.such", "", "google.protobuf.FieldOptions"}) {
    add()->set_all_extension_numbers_of_type(type);
    for (const int number : {0, 1, 1000, -1}) {
      auto* extension = add()->mutable_file_containing_extension();
      extension->set_containing_type(type);
      extension->set_extension_number(number);
    }
  }
  add()->set_host("somewhere.example");  // And asks for nothing.
  add()->set_file_containing_symbol("pipeloom.v1.RankPlan");
  requests.back().set_host("somewhere.example");
  const Reference reference;
  ASSERT_NE(reference.channel, nullptr);
  const TestService service;
  const std::string path =
      "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const auto ours = ChannelTo(service.target());
  size_t errors = 0;
  for (const ServerReflectionRequest& request : requests) {
    const std::string what = request.ShortDebugString();
    // A stream each: theirs does not send a file twice on one.
    grpc::Status status[2];
    const auto theirs = Ask<ServerReflectionResponse, ServerReflectionRequest>(
        reference.channel, path, {request}, 2, &status[0]);
    const auto mine = Ask<ServerReflectionResponse, ServerReflectionRequest>(
        ours, path, {request}, 2, &status[1]);
    EXPECT_TRUE(status[0].ok()) << what;
    EXPECT_TRUE(status[1].ok()) << what << status[1].error_message();
    ASSERT_EQ(theirs.size(), 1u) << what;
    ASSERT_EQ(mine.size(), 1u) << what;
    ServerReflectionResponse a = theirs[0];
    ServerReflectionResponse b = mine[0];
    if (a.has_error_response() && b.has_error_response()) {
      ++errors;
      EXPECT_NE(b.error_response().error_message(), "") << what;
      // The words may differ.
      a.mutable_error_response()->clear_error_message();
      b.mutable_error_response()->clear_error_message();
    }
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(a, b))
        << what << "\ntheirs: " << a.ShortDebugString().substr(0, 300)
        << "\nours: " << b.ShortDebugString().substr(0, 300);
  }
  EXPECT_GT(errors, 20u);
}

}  // namespace
}  // namespace pipeloom::testing
