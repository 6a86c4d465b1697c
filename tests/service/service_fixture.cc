#include "tests/service/service_fixture.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"
#include "tests/support/small_job.h"

namespace pipeloom::testing {
namespace {

absl::StatusOr<std::string> Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path);
  return std::string((std::istreambuf_iterator<char>(file)),
                     std::istreambuf_iterator<char>());
}

}  // namespace

TempFolder::TempFolder() {
  std::string name =
      (std::filesystem::temp_directory_path() / "pipeloom-XXXXXX").string();
  PIPELOOM_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

service::ServerOptions TestOptions() {
  service::ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.log_level = service::LogLevel::kOff;
  options.core.files = {
      .data_dir = absl::StrCat(PIPELOOM_SOURCE_DIR, "/workloads"),
      .read = Slurp};
  return options;
}

v1::OpenJobRequest SmallJobRequest(int32_t dp, int64_t evaluations) {
  JobSpec job = SmallVlmJob();
  job.parallel.dp = dp;
  job.cluster.num_nodes = 64;
  job.search.evaluations = evaluations;
  v1::OpenJobRequest request;
  *request.mutable_job() = convert::ToProto(job);
  *request.mutable_sample() = convert::ToProto(RandomBatch(1, 32, 2));
  return request;
}

v1::SubmitBatchRequest SmallBatch(const std::string& job, int64_t step,
                                  uint64_t seed, int32_t samples) {
  v1::SubmitBatchRequest request;
  request.set_job_id(job);
  request.set_step(step);
  *request.mutable_batch() = convert::ToProto(RandomBatch(seed, samples, 2));
  return request;
}

TestService::TestService(service::ServerOptions options) {
  const std::string certificate = options.tls.certificate;
  auto server = service::Server::Start(std::move(options));
  PIPELOOM_CHECK(server.ok());
  server_ = *std::move(server);
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      grpc::InsecureChannelCredentials();
  if (!certificate.empty()) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = certificate;
    credentials = grpc::SslCredentials(tls);
  }
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  // A channel of its own, not one that an earlier test left behind.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = v1::PlannerService::NewStub(
      grpc::CreateCustomChannel(target(), credentials, arguments));
}

std::string TestService::target() const {
  return absl::StrCat("127.0.0.1:", server_->port());
}

void TestService::Prepare(grpc::ClientContext* context,
                          std::chrono::milliseconds deadline) const {
  context->set_deadline(std::chrono::system_clock::now() + deadline);
  if (!token_.empty()) {
    context->AddMetadata("authorization", absl::StrCat("Bearer ", token_));
  }
}

grpc::Status TestService::Open(const v1::OpenJobRequest& request,
                               v1::OpenJobResponse* response) {
  grpc::ClientContext context;
  Prepare(&context, std::chrono::milliseconds(60'000));
  return stub_->OpenJob(&context, request, response);
}

grpc::Status TestService::Submit(const v1::SubmitBatchRequest& request,
                                 v1::SubmitBatchResponse* response) {
  grpc::ClientContext context;
  Prepare(&context, std::chrono::milliseconds(60'000));
  v1::SubmitBatchResponse unused;
  const grpc::Status status = stub_->SubmitBatch(
      &context, request, response == nullptr ? &unused : response);
  trailers_.clear();
  for (const auto& [name, value] : context.GetServerTrailingMetadata()) {
    trailers_.emplace(std::string(name.data(), name.size()),
                      std::string(value.data(), value.size()));
  }
  return status;
}

grpc::Status TestService::Get(const std::string& job, int64_t step,
                              int32_t replica, int32_t rank,
                              v1::RankPlan* response,
                              std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  Prepare(&context, deadline);
  v1::GetRankPlanRequest request;
  request.set_job_id(job);
  request.set_step(step);
  request.set_replica(replica);
  request.set_rank(rank);
  return stub_->GetRankPlan(&context, request, response);
}

grpc::Status TestService::GetWhole(const std::string& job, int64_t step,
                                   int32_t replica,
                                   v1::GetPlanResponse* response) {
  grpc::ClientContext context;
  Prepare(&context, std::chrono::milliseconds(60'000));
  v1::GetPlanRequest request;
  request.set_job_id(job);
  request.set_step(step);
  request.set_replica(replica);
  return stub_->GetPlan(&context, request, response);
}

std::string TestService::OpenSmallJob(int32_t dp, int64_t evaluations) {
  v1::OpenJobResponse response;
  const grpc::Status status = Open(SmallJobRequest(dp, evaluations), &response);
  PIPELOOM_CHECK(status.ok());
  return response.job_id();
}

std::string TestService::trailer(const std::string& name) const {
  const auto found = trailers_.find(name);
  return found == trailers_.end() ? "" : found->second;
}

}  // namespace pipeloom::testing
